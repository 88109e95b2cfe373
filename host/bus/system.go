package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

// ErrIncomplete: not every server of the broker answered. What the others said is no proof of anything that
// is not there.
var ErrIncomplete = errors.New("not every server answered")

// systemTimeout bounds how long the servers of a broker are waited for. They answer in milliseconds.
const systemTimeout = 5 * time.Second

// System asks the servers of a broker about themselves, over a connection to its system account.
type System struct{ nc *nats.Conn }

// System returns it; the connection has to be one of the system account.
func (b *Bus) System() *System { return &System{b.nc} }

// ServerFacts is what a server says of itself.
type ServerFacts struct {
	ID        string `json:"id"`
	Name      string `json:"name"`
	Version   string `json:"ver"`
	JetStream bool   `json:"jetstream"`
}

// Conn is one connection to the broker.
type Conn struct {
	Server  string // id
	CID     uint64
	User    string // public nkey, as the server verified it
	Account string
}

// systemReply is the envelope of all answers.
type systemReply struct {
	Server ServerFacts     `json:"server"`
	Data   json.RawMessage `json:"data"`
	Error  *struct {
		Code        int    `json:"code"`
		Description string `json:"description"`
	} `json:"error"`
	Statsz struct {
		Active int `json:"active_servers"`
	} `json:"statsz"`
}

// each sends a request to all servers and hands on the answers until take says that these are all of them.
func (s *System) each(ctx context.Context, subject string, body []byte, take func(*nats.Msg) (enough bool, err error)) error {
	ctx, cancel := context.WithTimeout(ctx, systemTimeout)
	defer cancel()
	inbox := s.nc.NewInbox()
	sub, err := s.nc.SubscribeSync(inbox)
	if err != nil {
		return fmt.Errorf("ask servers: %w: %w", ErrUnavailable, err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	if err := s.nc.PublishRequest(subject, inbox, body); err != nil {
		return fmt.Errorf("ask servers: %w: %w", ErrUnavailable, err)
	}
	for enough := false; !enough; {
		m, err := sub.NextMsgWithContext(ctx)
		if err != nil {
			return fmt.Errorf("ask servers: %s: %w: %w", subject, ErrIncomplete, err)
		}
		if m.Header.Get("Status") == "503" {
			return fmt.Errorf("ask servers: %s: %w: nobody listens (is this the system account?)", subject, ErrIncomplete)
		}
		if enough, err = take(m); err != nil {
			return err
		}
	}
	return nil
}

// gather sends a request to all servers and collects answers, by server, until enough says that these are all of them.
func (s *System) gather(ctx context.Context, subject string, body []byte, enough func(map[string]systemReply) bool) (map[string]systemReply, error) {
	all := map[string]systemReply{}
	err := s.each(ctx, subject, body, func(m *nats.Msg) (bool, error) {
		var r systemReply
		if err := json.Unmarshal(m.Data, &r); err != nil || r.Server.ID == "" {
			return false, fmt.Errorf("ask servers: %s: %w: an answer cannot be read", subject, ErrIncomplete)
		}
		all[r.Server.ID] = r
		return enough(all), nil
	})
	if err != nil {
		return all, fmt.Errorf("%w (%d answered)", err, len(all))
	}
	return all, nil
}

// Servers lists every server, sorted by id: each says how many there are, and as many have to answer.
//
// Errors: ErrIncomplete, ErrUnavailable.
func (s *System) Servers(ctx context.Context) ([]ServerFacts, error) {
	all, err := s.gather(ctx, "$SYS.REQ.SERVER.PING", nil, func(all map[string]systemReply) bool {
		n := 1
		for _, r := range all {
			n = max(n, r.Statsz.Active)
		}
		return len(all) >= n
	})
	if err != nil {
		return nil, err
	}
	var out []ServerFacts
	for _, r := range all {
		out = append(out, r.Server)
	}
	slices.SortFunc(out, func(a, b ServerFacts) int { return strings.Compare(a.ID, b.ID) })
	return out, nil
}

// PushAccount gives every server a new account JWT and returns how many took it, which is all of them.
// Connections that the new one does not allow any more are ended by the servers.
//
// Errors: ErrIncomplete (some server did not answer, or did not take it: the text says why), ErrUnavailable.
func (s *System) PushAccount(ctx context.Context, account, token string) (int, error) {
	servers, err := s.Servers(ctx)
	if err != nil {
		return 0, fmt.Errorf("push account: %w", err)
	}
	all, err := s.gather(ctx, "$SYS.REQ.ACCOUNT."+account+".CLAIMS.UPDATE", []byte(token), func(all map[string]systemReply) bool {
		for _, srv := range servers {
			if _, ok := all[srv.ID]; !ok {
				return false
			}
		}
		return true
	})
	if err != nil {
		return 0, fmt.Errorf("push account: %w", err)
	}
	for _, r := range all {
		var st struct {
			Code    int    `json:"code"`
			Message string `json:"message"`
		}
		_ = json.Unmarshal(r.Data, &st) // of a refusal there is none
		switch {
		case r.Error != nil:
			return 0, fmt.Errorf("push account: %w: server %s: %s", ErrIncomplete, r.Server.Name, r.Error.Description)
		case st.Code != 200 || strings.Contains(st.Message, "skipped"):
			return 0, fmt.Errorf("push account: %w: server %s: %s", ErrIncomplete, r.Server.Name, st.Message)
		}
	}
	return len(servers), nil
}

// LookUpAccount returns the account JWT as each server has it; empty where one has none. Which server is which is not
// told.
//
// Errors: ErrIncomplete (some server did not answer), ErrUnavailable.
func (s *System) LookUpAccount(ctx context.Context, account string) ([]string, error) {
	servers, err := s.Servers(ctx)
	if err != nil {
		return nil, fmt.Errorf("look up account: %w", err)
	}
	var have []string
	err = s.each(ctx, "$SYS.REQ.ACCOUNT."+account+".CLAIMS.LOOKUP", nil, func(m *nats.Msg) (bool, error) {
		have = append(have, string(m.Data))
		return len(have) >= len(servers), nil
	})
	if err != nil {
		return nil, fmt.Errorf("look up account: %w: %d of %d have", err, len(have), len(servers))
	}
	return have, nil
}

// Bounds of a list of connections.
const (
	connPage  = 512 // connections that are asked for at a time
	connTries = 10  // lists that are begun while connections end
)

// errMoved: a list that is told in pages has changed between two of them.
var errMoved = errors.New("connections end all the time")

// Connections lists all connections of an account on every server.
//
// Errors: ErrIncomplete, ErrUnavailable.
func (s *System) Connections(ctx context.Context, account string) ([]Conn, int, error) {
	servers, err := s.Servers(ctx)
	if err != nil {
		return nil, 0, fmt.Errorf("list connections: %w", err)
	}
	var out []Conn
	for _, srv := range servers {
		var of []Conn
		for range connTries {
			if of, err = s.connectionsOf(ctx, srv, account); !errors.Is(err, errMoved) {
				break
			}
		}
		if err != nil {
			return nil, 0, fmt.Errorf("list connections: %w", err)
		}
		out = append(out, of...)
	}
	return out, len(servers), nil
}

// connectionsOf lists them on one server, by their numbers, a page at a time. The server counts by places: once a
// connection has ended each one behind it is at the place before, and one would be skipped where the next page begins.
// So each page begins with the last one of the page before, and where it does not the list is worth nothing.
func (s *System) connectionsOf(ctx context.Context, srv ServerFacts, account string) ([]Conn, error) {
	var out []Conn
	for {
		var page struct {
			Total int `json:"total"`
			Conns []struct {
				CID     uint64 `json:"cid"`
				User    string `json:"authorized_user"`
				Account string `json:"account"`
			} `json:"connections"`
		}
		offset := max(len(out)-1, 0)
		err := s.ask(ctx, srv.ID, "CONNZ", map[string]any{"auth": true, "acc": account, "sort": "cid", "offset": offset, "limit": connPage}, &page)
		if err != nil {
			return nil, err
		}
		conns := page.Conns
		if len(out) > 0 {
			if len(conns) == 0 || conns[0].CID != out[len(out)-1].CID {
				return nil, fmt.Errorf("%w: server %s: %w", ErrIncomplete, srv.Name, errMoved)
			}
			conns = conns[1:]
		}
		for _, c := range conns {
			if c.Account != account {
				return nil, fmt.Errorf("%w: server %s told of account %s", ErrIncomplete, srv.Name, c.Account)
			}
			out = append(out, Conn{Server: srv.ID, CID: c.CID, User: c.User, Account: c.Account})
		}
		if len(out) >= page.Total {
			return out, nil
		}
		if len(conns) == 0 {
			return nil, fmt.Errorf("%w: server %s told of %d of %d", ErrIncomplete, srv.Name, len(out), page.Total)
		}
	}
}

// Kick ends one connection. That it is gone already is success.
//
// Errors: ErrIncomplete (the server did not answer), ErrUnavailable.
func (s *System) Kick(ctx context.Context, c Conn) error {
	if err := s.ask(ctx, c.Server, "KICK", map[string]any{"cid": c.CID}, nil); err != nil && !errors.Is(err, errAnswered) {
		return fmt.Errorf("end connection %d: %w", c.CID, err)
	}
	return nil
}

// Limits are what a server says it takes.
type Limits struct {
	MaxPayload     int    `json:"max_payload"`
	MaxControlLine int    `json:"max_control_line"`
	Version        string `json:"version"`
}

// Limits asks one server.
//
// Errors: ErrIncomplete, ErrUnavailable.
func (s *System) Limits(ctx context.Context, server string) (Limits, error) {
	var l Limits
	if err := s.ask(ctx, server, "VARZ", struct{}{}, &l); err != nil {
		return l, fmt.Errorf("read limits: %w", err)
	}
	return l, nil
}

// errAnswered: the server answered, and refused.
var errAnswered = errors.New("refused")

func (s *System) ask(ctx context.Context, server, what string, body, dst any) error {
	ctx, cancel := context.WithTimeout(ctx, systemTimeout)
	defer cancel()
	raw, err := json.Marshal(body)
	if err != nil {
		return err
	}
	m, err := s.nc.RequestWithContext(ctx, "$SYS.REQ.SERVER."+server+"."+what, raw)
	if err != nil {
		return fmt.Errorf("%w: server %s: %w", ErrIncomplete, server, err)
	}
	var r systemReply
	if err := json.Unmarshal(m.Data, &r); err != nil {
		return fmt.Errorf("%w: server %s: its answer cannot be read", ErrIncomplete, server)
	}
	if r.Error != nil {
		return fmt.Errorf("%w: server %s: %w: %s", ErrIncomplete, server, errAnswered, r.Error.Description)
	}
	if dst == nil {
		return nil
	}
	if err := json.Unmarshal(r.Data, dst); err != nil {
		return fmt.Errorf("%w: server %s: its answer cannot be read", ErrIncomplete, server)
	}
	return nil
}
