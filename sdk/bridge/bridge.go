package bridge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Times of a bridge.
const (
	leaveTimeout = time.Second            // of the goodbye
	stepTimeout  = 10 * time.Second       // of one step of joining
	retryMin     = 100 * time.Millisecond // between attempts to join
	retryMax     = 5 * time.Second
	wakeTimeout  = 10 * time.Second
	wakeAgain    = 3 * time.Second  // after ErrNotNow
	wakeSettle   = 3 * time.Second  // until a program that was woken says that it works
	nudgeCheck   = 10 * time.Second // until one that has hooks must have said so, or is told once more
	maxNudges    = 3
	holdEvery    = wire.AckWait / 3
	taskTime     = wire.AckWait - 5*time.Second // that a task of the role waits for an agent that does not read it
	listenAgain  = 500 * time.Millisecond
	replayOnJoin = 20 // earlier messages that a channel begins with
)

// ErrNotConnected: the bridge has not reached the mesh yet. The text says what is in the way.
var ErrNotConnected = errors.New("not connected to the mesh yet")

// Options of a Bridge.
type Options struct {
	// Log is told what cannot be told to the agent; nil: nobody.
	Log *slog.Logger
	// Waker brings messages to an idle agent; nil: they wait for it.
	Waker Waker
	// WakeByHost tells an idle agent of messages through the input of its host, for programs that have nothing
	// better. Waker is not looked at then.
	WakeByHost bool
	// Status the agent begins with: idle (the default) or working. By is how that is known; "": it is only supposed.
	Status   string
	By       string
	Activity string
	// StatusFile is a file in which the program says its state (readStatusFile): a second source, for what its hooks
	// do not tell. Empty: there is none.
	StatusFile string
	// Silence is how long a turn may tell nothing before it counts as over; 0: for ever. DefaultSilence suits programs
	// whose hooks do not tell of an interrupted turn.
	Silence time.Duration
	// NoControl leaves the control socket out: the program has no hooks.
	NoControl bool
	// Eager: messages are taken at any time, whatever the state.
	Eager bool
	// OnMessage is told that something is in the inbox. It must not block.
	OnMessage func()
}

// Bridge is an agent on the mesh.
type Bridge struct {
	l     Launch
	opts  Options
	times times
	log   *slog.Logger
	box   inbox

	ctx    context.Context //nolint:containedctx // of the bridge's own life
	cancel context.CancelFunc
	wg     sync.WaitGroup
	change chan struct{} // the record has to be published
	bell   chan struct{} // something may be brought to the agent
	rung   broadcast     // the same, for those who wait in Next
	joined chan struct{} // closed once it is present

	mu        sync.Mutex
	client    *mesh.Client
	roster    *mesh.Roster
	presence  *mesh.Presence
	trouble   error // why it is not connected
	state     State
	heard     bool   // a hook told something
	claim     string // status the agent claims
	note      string // activity the agent claims
	attention string
	modes     map[string]string
	channels  map[string]*mesh.Channel
	order     []string // of the channels, as they were joined
	model     string   // as the program said
	session   string
	cleared   bool      // while session is "": clearedBehind
	lately    time.Time // when a hook last told anything
	latest    int64     // of what hooks told, by the program's clock (Event.At)
	active    time.Time // the same of its work: no notification, which also tells that nobody does anything
	amended   time.Time // when the state was last set by something else
	brought   bool      // the turn that is open goes on with messages of a hook, and nothing was told since
	woken     time.Time // when a turn was last begun here, and nothing was told since
}

// Start begins to be an agent. It returns at once: the mesh is joined beside it and looked for until it is there,
// since an agent program waits for nobody. Joined waits; Close ends it.
func Start(l Launch, opts Options) *Bridge {
	return start(l, opts, times{task: taskTime, hold: holdEvery})
}

// times are those of a bridge that a test shortens.
type times struct {
	task time.Duration // see taskTime
	hold time.Duration // how often the mesh is told that a message is still being handled
}

func start(l Launch, opts Options, t times) *Bridge {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	b := &Bridge{
		l: l, opts: opts, times: t, log: opts.Log, change: make(chan struct{}, 1), bell: make(chan struct{}, 1), joined: make(chan struct{}),
		trouble: errors.New("it is being looked for"), attention: wire.AttentionOpen, modes: map[string]string{}, channels: map[string]*mesh.Channel{},
	}
	b.state = State{Status: first(opts.Status, wire.StatusIdle), By: opts.By, Activity: opts.Activity, Turn: opts.Status == wire.StatusWorking}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	if opts.WakeByHost {
		b.opts.Waker = hostWaker{b}
	}
	if !opts.NoControl {
		b.wg.Go(b.listen)
	}
	if opts.StatusFile != "" || opts.Silence > 0 {
		b.wg.Go(b.look)
	}
	b.wg.Go(b.run)
	return b
}

// Joined waits until the agent is present on the mesh. Errors: ctx's, with what is in the way; ErrNotConnected
// when the bridge was closed.
func (b *Bridge) Joined(ctx context.Context) error {
	select {
	case <-b.joined:
		return nil
	case <-ctx.Done():
		_, err := b.mesh()
		return errors.Join(ctx.Err(), err)
	case <-b.ctx.Done():
		return ErrNotConnected
	}
}

// Close says goodbye and ends everything. It takes a second or so at most, whatever the mesh does.
func (b *Bridge) Close() {
	b.cancel()
	b.wg.Wait()
	for _, it := range b.box.held() {
		_ = it.d.Again(0) // to the next process of this life, if there is one
	}
	b.mu.Lock()
	p, r, c := b.presence, b.roster, b.client
	b.presence, b.roster, b.client, b.trouble = nil, nil, nil, errors.New("it was left")
	b.mu.Unlock()
	if p != nil {
		ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
		if err := p.Leave(ctx); err != nil {
			b.log.Debug("goodbye to the mesh", "err", err) // the record ends by itself
		}
		cancel()
	}
	if r != nil {
		r.Close()
	}
	if c != nil {
		c.Close()
	}
}

// listen hears the hooks of the program. Another bridge of the same seat may still be about to end.
func (b *Bridge) listen() {
	for said := false; ; said = true {
		ctl, err := newControl(b.l, b)
		if err == nil {
			stop := context.AfterFunc(b.ctx, ctl.close)
			ctl.serve()
			stop()
			return
		}
		if !said {
			b.log.Error("hooks of this program are not heard yet", "err", err)
		}
		if !b.pause(listenAgain) {
			return
		}
	}
}

// mesh is the connection, once there is one.
func (b *Bridge) mesh() (*mesh.Client, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.client == nil || b.roster == nil {
		return nil, fmt.Errorf("%w (%s): %w", ErrNotConnected, b.l.Servers, b.trouble)
	}
	return b.client, nil
}

// run joins, and then keeps the record what it has to be.
func (b *Bridge) run() {
	var direct *mesh.Queue
	steps := []func(context.Context) error{
		b.connect, b.watch,
		func(ctx context.Context) (err error) { // before the card: whoever sees us may write to us
			c, err := b.mesh()
			if err == nil {
				direct, err = c.DirectMessages(ctx, mesh.QueueOptions{})
			}
			return err
		},
		b.appear,
	}
	for i, step := range steps {
		if !b.insist(i, step) {
			if direct != nil {
				direct.Close()
			}
			return
		}
	}
	close(b.joined)
	b.wg.Go(func() { b.readDirect(direct) })
	if b.l.Role != "" {
		b.wg.Go(b.readTasks)
	}
	for _, name := range b.l.Subscribe {
		b.wg.Go(func() { b.boot(name) })
	}
	b.wg.Go(b.holdOn)
	b.wg.Go(b.deliver)
	for {
		select {
		case <-b.ctx.Done():
			return
		case <-b.change:
			b.publish()
		}
	}
}

// insist repeats a step until it succeeds; false: the bridge ends.
func (b *Bridge) insist(n int, step func(context.Context) error) bool {
	for wait := retryMin; ; wait = min(2*wait, retryMax) {
		ctx, cancel := context.WithTimeout(b.ctx, stepTimeout)
		err := step(ctx)
		cancel()
		if err == nil || b.ctx.Err() != nil {
			return b.ctx.Err() == nil
		}
		b.log.Warn("cannot join the mesh yet", "step", n, "err", err)
		b.mu.Lock()
		b.trouble = err
		b.mu.Unlock()
		if !b.pause(wait) {
			return false
		}
	}
}

// pause waits; false: the bridge ends.
func (b *Bridge) pause(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-b.ctx.Done():
		return false
	}
}

func (b *Bridge) connect(ctx context.Context) error {
	cfg, err := b.l.connect(nil)
	if err != nil {
		return err
	}
	c, err := mesh.Connect(ctx, cfg)
	if err != nil {
		return err
	}
	b.mu.Lock()
	b.client = c
	b.mu.Unlock()
	return nil
}

func (b *Bridge) watch(ctx context.Context) error {
	b.mu.Lock()
	c := b.client
	b.mu.Unlock()
	r, err := c.WatchPresence(ctx)
	if err != nil {
		return err
	}
	b.mu.Lock()
	b.roster = r
	b.mu.Unlock()
	return nil
}

func (b *Bridge) appear(ctx context.Context) error {
	c, err := b.mesh()
	if err != nil {
		return err
	}
	rec := wire.Presence{}
	b.mu.Lock()
	b.fill(&rec)
	b.mu.Unlock()
	card := b.l.card()
	b.told(&card)
	// A bridge that ends while it joins waits a moment for the answer: a record that stands on the mesh, and of which
	// nobody here knows, gets no goodbye.
	join, giveUp := lastWord(ctx)
	defer giveUp()
	p, err := c.Join(join, mesh.JoinConfig{
		Card: card, LifecycleUID: b.l.LifecycleUID, Status: rec.Status, Activity: rec.Activity, Condition: rec.Condition,
		Environment: b.l.Environment,
	})
	if err != nil {
		return err
	}
	b.mu.Lock()
	b.presence = p
	b.mu.Unlock()
	return nil
}

// told adds to a card what the program said of itself.
func (b *Bridge) told(card *wire.AgentCard) {
	b.mu.Lock()
	model, session, cleared := b.model, b.session, b.cleared
	_, by := shownStatus(b.state, b.heard, b.claim)
	b.mu.Unlock()
	if card.Meta = maps.Clone(card.Meta); card.Meta == nil {
		card.Meta = map[string]json.RawMessage{}
	}
	set := func(key, value string) {
		if raw, err := json.Marshal(value); err == nil && value != "" {
			card.Meta[key] = raw
		}
	}
	if b.l.Model == "" {
		set("model", model)
	}
	delete(card.Meta, "sessionId") // it may be another one now, of which nothing was said yet
	set("sessionId", session)
	if session == "" && cleared { // whoever starts the program again is not to take the last one that he knows of
		card.Meta["sessionId"] = json.RawMessage(`""`)
	}
	delete(card.Meta, wire.MetaStateBy) // what was known may be supposed again
	set(wire.MetaStateBy, by)
}

// fill says in a record what the agent does; b.mu is held.
func (b *Bridge) fill(r *wire.Presence) {
	r.Activity = first(b.note, b.state.Activity)
	r.Status, _ = shownStatus(b.state, b.heard, b.claim)
	switch c := b.state.Condition; {
	case c == nil:
		r.Condition = nil
	case r.Condition == nil || r.Condition.Code != c.Code || r.Condition.Source != c.Source || r.Condition.Message != c.Message:
		cond := *c
		cond.Since = time.Now().UnixMilli()
		r.Condition = &cond
	}
	r.Attention, r.ChannelModes = b.attention, maps.Clone(b.modes)
	if len(r.ChannelModes) == 0 {
		r.ChannelModes = nil
	}
	if !b.active.IsZero() {
		r.ActiveAt = b.active.UnixMilli()
	}
}

// shownStatus is what an agent is shown as, and how that is known: what its program's hooks tell; else what it says
// itself. Between turns an agent may say that it waits for somebody, which its program cannot know.
func shownStatus(s State, heard bool, claim string) (status, by string) {
	switch {
	case !heard && claim != "":
		return claim, ByAgent
	case s.Status == wire.StatusIdle && s.Condition == nil && claim == wire.StatusWaiting:
		return claim, ByAgent
	}
	return s.Status, s.By
}

// publish makes the record on the mesh what it has to be.
func (b *Bridge) publish() {
	b.mu.Lock()
	p, gone := b.presence, b.state.Gone
	b.mu.Unlock()
	ctx, cancel := context.WithTimeout(b.ctx, stepTimeout)
	defer cancel()
	var err error
	switch {
	case p == nil && gone:
		return
	case p == nil: // a session began again
		err = b.appear(ctx)
	case gone:
		err = p.Leave(ctx)
		b.mu.Lock()
		b.presence = nil
		b.mu.Unlock()
	default:
		err = p.Update(ctx, func(r *wire.Presence) {
			b.mu.Lock()
			b.fill(r)
			b.mu.Unlock()
			b.told(&r.Card)
		})
	}
	if err != nil && b.ctx.Err() == nil {
		b.log.Warn("cannot publish presence", "err", err) // a change goes out with the next heartbeat
		if p == nil && b.pause(time.Second) {
			b.changed()
		}
	}
}

func (b *Bridge) changed() { ring(b.change) }

// wake has it looked whether something may be brought to the agent.
func (b *Bridge) wake() {
	ring(b.bell)
	b.rung.ring()
}

// broadcast wakes everybody who waits.
type broadcast struct {
	mu sync.Mutex
	c  chan struct{}
}

func (b *broadcast) wait() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.c == nil {
		b.c = make(chan struct{})
	}
	return b.c
}

func (b *broadcast) ring() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.c != nil {
		close(b.c)
		b.c = nil
	}
}

// ring wakes who waits at a channel of one place.
func ring(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// onFrame takes in what a hook told. items are messages that go with the answer.
func (b *Bridge) onFrame(f frame) (a answer, items []item) {
	b.mu.Lock()
	before := b.state
	told := false
	if !overtaken(f.Event, b.latest) {
		b.state, told = judged(b.state, f.Event)
	}
	b.latest = max(b.latest, f.Event.At)
	b.heard, b.lately, b.brought = b.heard || told, time.Now(), false
	if word(f.Event.Name) != "notification" {
		b.active = b.lately
	}
	if told {
		b.woken = time.Time{}
	}
	b.model, b.session = first(f.Event.Model, b.model), sessionOf(b.session, f.Event)
	b.cleared = clearedBehind(b.cleared, f.Event)
	switch word(f.Event.Name) {
	case "sessionstart":
		if !before.Turn || before.Gone {
			b.attention, b.claim, b.note = wire.AttentionOpen, "", ""
		}
	case "userpromptsubmit", "beforeagent":
		b.claim, b.note = "", ""
	}
	b.mu.Unlock()
	a.OK = true
	if f.Deliver {
		a.Output, items = b.handOver(f.Event.Name)
	}
	b.changed()
	b.wake()
	return a, items
}

// bring ends what handOver began: messages that were taken out went to the program with a hook, or could not.
func (b *Bridge) bring(e Event, items []item, err error) {
	switch {
	case len(items) == 0:
	case err == nil:
		b.done(items)
	default:
		b.box.back(items)
		b.mu.Lock()
		if word(e.Name) == "stop" && b.brought { // the turn did not go on with them
			b.state, b.brought = Judge(b.state, e), false
		}
		b.mu.Unlock()
		b.changed()
		b.wake()
	}
}

// handOver gives the program the messages that may be brought to it, in the form that its hooks print; nil: there
// are none, or this hook brings none. They are taken out.
func (b *Bridge) handOver(event string) (json.RawMessage, []item) {
	form := hookForm(event)
	if form == nil {
		return nil, nil
	}
	end, within := word(event) == "stop", word(event) == "posttooluse"
	items, _, _ := b.box.take(func(it item) bool { return it.urgent || !it.silent && !end && !(within && it.turn) })
	if len(items) == 0 {
		return nil, nil
	}
	out, err := json.Marshal(form(wakeText(items)))
	if err != nil {
		b.box.back(items)
		return nil, nil
	}
	if end { // the turn goes on
		b.mu.Lock()
		b.state, b.brought = State{Status: wire.StatusWorking, By: ByHook, Turn: true}, true
		b.mu.Unlock()
	}
	return out, items
}

// hookForm is how a hook of a name gives its program a text; nil: it cannot.
func hookForm(event string) func(text string) any {
	switch word(event) {
	case "stop":
		return func(text string) any { return map[string]string{"decision": "block", "reason": text} }
	case "userpromptsubmit", "sessionstart", "posttooluse":
		return func(text string) any {
			return map[string]any{"hookSpecificOutput": map[string]string{"hookEventName": event, "additionalContext": text}}
		}
	}
	return nil
}

// done takes messages for read, here and on the mesh.
func (b *Bridge) done(items []item) {
	b.box.remove(items)
	// Also of a bridge that ends: what was read comes to somebody else otherwise.
	told, giveUp := lastWord(b.ctx)
	defer giveUp()
	ctx, cancel := context.WithTimeout(told, stepTimeout)
	defer cancel()
	ack(ctx, items)
}

// lastWord is ctx and a moment behind its end, for what has to be answered all the same.
func lastWord(ctx context.Context) (context.Context, context.CancelFunc) {
	longer, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(leaveTimeout, giveUp) })
	return longer, func() { stop(); giveUp() }
}
