package opencode

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/cotal-ai/cotal-host/connectors/opencode/api"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/program"
)

// maxRead bounds the small files of others that are read here.
const maxRead = 1 << 20

// reapTimeout bounds the question Reap asks on loopback, and reapEvery is the pause before it is repeated.
const (
	reapTimeout = 2 * time.Second
	reapEvery   = 50 * time.Millisecond
)

// Reap removes what BuildLaunch put into the seat's directory, once nothing answers on the seat's API port
// with the seat's password. Sessions stay: they are the user's, in the user's data directory, and can be
// resumed by id. Errors: ErrUnproven (the program still answers; nothing was removed).
func (c *Connector) Reap(ctx context.Context, req sdk.LeftoverRequest) (sdk.ReapReport, error) {
	var left sdk.Leftovers
	if req.Dir == "" {
		left.Say("no directory given: nothing of a launch can be left in one")
		return left.Report(), nil
	}
	data, err := program.ReadFile(filepath.Join(req.Dir, api.RecordFile), maxRead)
	var at api.Record
	switch {
	case errors.Is(err, fs.ErrNotExist):
		left.Say("no %s in %s: no API port of this seat is known", api.RecordFile, req.Dir)
	case err != nil:
		return left.Report(), sdk.StillThere("read API port: %v", err)
	case json.Unmarshal(data, &at) != nil || at.Port == 0:
		left.Say("%s is not readable as the record of an API port", api.RecordFile)
	default:
		answer, alive := ask(ctx, at)
		if alive {
			return left.Report(), sdk.StillThere("OpenCode may still live: 127.0.0.1:%d %s", at.Port, answer)
		}
		left.Say("127.0.0.1:%d %s", at.Port, answer)
	}
	for _, name := range []string{personaFile, planFile, logFile, tmpDir, api.SessionFile, api.RecordFile} { // the record last: see above
		if err := left.Remove(filepath.Join(req.Dir, name)); err != nil {
			return left.Report(), err
		}
	}
	if err := left.RemoveSockets(req.Dir); err != nil {
		return left.Report(), err
	}
	left.Say("sessions stay in OpenCode's own data directory")
	return left.Report(), nil
}

// ask says whether this seat's program answers. A port can have become somebody else's: only an answer
// that accepts the seat's password is the seat's. No answer is not proof of absence, so it asks again: a
// process that is just ending resets connections before it refuses them.
func ask(ctx context.Context, at api.Record) (answer string, alive bool) {
	ctx, cancel := context.WithTimeout(ctx, reapTimeout)
	defer cancel()
	for {
		answer, verdict := askOnce(ctx, at)
		if verdict != askAgain {
			return answer, verdict == askAlive
		}
		wait := time.NewTimer(reapEvery)
		select {
		case <-wait.C:
		case <-ctx.Done():
			wait.Stop()
			return answer, true
		}
	}
}

type verdict int

const (
	askAgain verdict = iota
	askAlive
	askGone
)

// askOnce asks without the password first: the seat's program refuses that, and one that lets everybody in, such as
// another OpenCode on a fixed port, would be taken for it.
func askOnce(ctx context.Context, at api.Record) (string, verdict) {
	status, _, answer, v := health(ctx, at, false)
	if v != askAlive {
		return answer, v
	}
	if status == http.StatusOK {
		return "belongs to somebody else now (it wants no password)", askGone
	}
	status, healthy, answer, v := health(ctx, at, true)
	switch {
	case v != askAlive:
		return answer, v
	case healthy:
		return "still answers to the seat's password", askAlive
	}
	return fmt.Sprintf("belongs to somebody else now (HTTP %d)", status), askGone
}

// health is one question. Its verdict is askAlive when somebody answered.
func health(ctx context.Context, at api.Record, login bool) (status int, healthy bool, answer string, v verdict) {
	ctx, cancel := context.WithTimeout(ctx, reapTimeout/4)
	defer cancel()
	url := "http://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(at.Port)) + api.HealthPath
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, false, err.Error(), askAgain
	}
	if login {
		r.SetBasicAuth(at.User, at.Password)
	}
	client := http.Client{
		Transport:     &http.Transport{DisableKeepAlives: true}, // no proxy: this is loopback
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	resp, err := client.Do(r)
	if err != nil {
		if errors.Is(err, syscall.ECONNREFUSED) {
			return 0, false, "refuses connections", askGone
		}
		return 0, false, "gave no answer: " + err.Error(), askAgain
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(io.LimitReader(resp.Body, 4096))
	var said struct {
		Healthy bool `json:"healthy"`
	}
	healthy = resp.StatusCode == http.StatusOK && json.Unmarshal(body, &said) == nil && said.Healthy
	return resp.StatusCode, healthy, "", askAlive
}
