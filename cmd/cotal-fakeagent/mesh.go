package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// meshTimeout bounds one exchange with the mesh. It is long because tests run on machines that are busy.
const meshTimeout = 30 * time.Second

// joinStep joins the mesh as the seat that the program is in, with what is given here in place of it.
type joinStep struct {
	Status   string `json:"status"`
	Activity string `json:"activity"`
	Name     string `json:"name"`
	// UID and Principal: "other" stands for a fresh one, so that the program is not who it was launched as.
	UID       string `json:"uid"`
	Principal string `json:"principal"`
}

type statusStep struct {
	Status    string `json:"status"`
	Activity  string `json:"activity"`
	Condition string `json:"condition"` // code; empty takes it back
}

type sayStep struct {
	Channel string `json:"channel"`
	To      string `json:"to"` // principal
	Text    string `json:"text"`
}

type hearStep struct {
	Channel string `json:"channel"`
	Count   int    `json:"count"` // 0: for ever
	File    string `json:"file"`
}

type inboxStep struct {
	Count int    `json:"count"`
	File  string `json:"file"`
}

// onMesh is what the program is on the mesh; nil before its join step.
var onMesh struct {
	client   *mesh.Client
	presence *mesh.Presence
}

// runMesh runs the steps about the mesh; false: it is none of them.
func runMesh(s step) (bool, error) {
	ctx, cancel := context.WithTimeout(context.Background(), meshTimeout)
	defer cancel()
	switch {
	case s.Join != nil:
		return true, joinMesh(ctx, s.Join)
	case s.Status != nil:
		return true, present(func(p *mesh.Presence) error {
			return p.Update(ctx, func(r *wire.Presence) {
				r.Status, r.Activity, r.Condition = s.Status.Status, fill(s.Status.Activity), nil
				if s.Status.Condition != "" {
					r.Condition = &wire.PresenceCondition{Code: s.Status.Condition, Since: time.Now().UnixMilli()}
				}
			})
		})
	case s.Leave != nil:
		return true, present(func(p *mesh.Presence) error { return p.Leave(ctx) })
	case s.Vanish != nil:
		return true, present(func(*mesh.Presence) error {
			onMesh.client.Close() // no goodbye: for the mesh it died
			return nil
		})
	case s.Say != nil:
		return true, present(func(*mesh.Presence) error {
			_, err := onMesh.client.Send(ctx, wire.Message{Channel: s.Say.Channel, To: s.Say.To, Parts: mesh.Text(fill(s.Say.Text))})
			return err
		})
	case s.Inbox != nil:
		return true, present(func(*mesh.Presence) error { return inbox(s.Inbox) })
	case s.Hear != nil:
		return true, present(func(*mesh.Presence) error { return hear(s.Hear) })
	}
	return false, nil
}

func present(do func(*mesh.Presence) error) error {
	if onMesh.presence == nil {
		return errors.New("not on the mesh: a join step has to come first")
	}
	return do(onMesh.presence)
}

func joinMesh(ctx context.Context, s *joinStep) error {
	cfg, join, err := mesh.FromSeat(nil)
	if err != nil {
		return err
	}
	if s.Principal != "" || s.UID != "" {
		other, err := mesh.NewCaller()
		if err != nil {
			return err
		}
		switch s.Principal {
		case "":
		case "other":
			cfg.Caller.Actor = other.Actor
		default:
			if cfg.Caller.Owner, cfg.Caller.Actor, err = wire.ParsePrincipal(s.Principal); err != nil {
				return err
			}
		}
		switch s.UID {
		case "":
		case "other":
			cfg.Caller.UID = other.UID
		default:
			cfg.Caller.UID = s.UID
		}
	}
	if s.Name != "" {
		join.Card.Name = fill(s.Name)
	}
	join.Status, join.Activity = s.Status, fill(s.Activity)
	c, err := mesh.Connect(ctx, cfg)
	if err != nil {
		return err
	}
	onMesh.client = c
	onMesh.presence, err = c.Join(ctx, join)
	return err
}

// hear appends what is said on a channel to a file, a line each.
func hear(s *hearStep) error {
	ch, err := onMesh.client.JoinChannel(context.Background(), s.Channel, mesh.ChannelOptions{})
	if err != nil {
		return err
	}
	read := func() error {
		defer ch.Leave()
		for i := 0; s.Count == 0 || i < s.Count; i++ {
			m, err := ch.Next(context.Background())
			if err != nil {
				return err
			}
			line := strings.ReplaceAll(fmt.Sprintf("%s: %s", m.From.Name, m.Text()), "\n", " ")
			if err := appendTo(&fileText{s.File, line + "\n"}); err != nil {
				return err
			}
		}
		return nil
	}
	if s.Count == 0 {
		go func() { _ = read() }()
		return nil
	}
	return read()
}

// inbox appends direct messages to a file, a line each, and acknowledges them.
func inbox(s *inboxStep) error {
	q, err := onMesh.client.DirectMessages(context.Background(), mesh.QueueOptions{})
	if err != nil {
		return err
	}
	defer q.Close()
	for i := 0; i < max(s.Count, 1); i++ {
		d, err := q.Next(context.Background())
		if err != nil {
			return err
		}
		line := strings.ReplaceAll(fmt.Sprintf("%s: %s", d.From.Name, d.Text()), "\n", " ")
		if err := appendTo(&fileText{s.File, line + "\n"}); err != nil {
			return err
		}
		if err := d.Ack(context.Background()); err != nil {
			return err
		}
	}
	return nil
}
