package wire

// SubmissionSubject is where a request of class journal is appended:
//
//	cotal.<space>.epj.<endpoint>.<command>[.<authz>[.<target>]].<owner>.<actor>.<uid>
//
// It is a request subject without route and nonce: nobody waits on it.
type SubmissionSubject struct {
	Space       string
	Endpoint    string
	Command     string
	Authz       Authz
	TargetOwner string // every mode but none and self
	TargetActor string // handle and exact only
	TargetUID   string // handle and exact only
	Caller      Caller
}

// Submission is the submission subject of a request.
func (r RequestSubject) Submission() SubmissionSubject {
	return SubmissionSubject{
		Space: r.Space, Endpoint: r.Endpoint, Command: r.Command, Authz: r.Authz,
		TargetOwner: r.TargetOwner, TargetActor: r.TargetActor, TargetUID: r.TargetUID, Caller: r.Caller,
	}
}

// Subject builds the subject. It refuses (a *SubjectError naming the field) rather than mangles.
func (s SubmissionSubject) Subject() (string, error) {
	b := build("build submission subject", s.Space, "epj")
	b.endpoint(s.Endpoint)
	b.add("command", s.Command, ValidCommand, whyCommand)
	n := s.Authz.targetTokens()
	if s.Authz != AuthzNone {
		if n < 0 {
			b.fail("authorization mode", string(s.Authz), "is not known")
		}
		b.word(string(s.Authz))
	}
	bad := func(field, value, problem string) error {
		return &SubjectError{b.op, field, tokenProblem(value, problem)}
	}
	if err := checkTargetTokens(bad, max(n, 0), s.TargetOwner, s.TargetActor, s.TargetUID); err != nil && b.err == nil {
		b.err = err
	}
	b.tok = append(b.tok, []string{s.TargetOwner, s.TargetActor, s.TargetUID}[:max(n, 0)]...)
	b.caller(s.Caller)
	return b.join()
}

// ParseSubmissionSubject takes a submission subject apart. As on the request rails, the token behind the
// command decides the form and the number of tokens never does.
func ParseSubmissionSubject(subject string) (SubmissionSubject, error) {
	const op = "parse submission subject"
	c, space, err := open(op, subject, "epj", 5, true)
	if err != nil {
		return SubmissionSubject{}, err
	}
	s := SubmissionSubject{Space: space, Endpoint: c.endpoint(), Command: c.next()}
	s.Authz, s.TargetOwner, s.TargetActor, s.TargetUID = c.aim()
	s.Caller = c.caller()
	made, err := s.Subject()
	return rebuilt(op, subject, s, made, err)
}

// Timer phases.
const (
	TimerSchedule = "schedule" // asked for, by the instance
	TimerArmed    = "armed"    // by the timer writer only
	TimerFire     = "fire"     // by the broker's scheduler
)

// TimerSubject is a step of a durable timer:
//
//	cotal.<space>.ept.<endpoint>.<instance>.<epoch>.<timer>.<schedule|armed|fire>
type TimerSubject struct {
	Space      string
	Endpoint   string
	InstanceID string
	Epoch      uint64
	TimerID    string
	Phase      string
}

// Subject builds the subject. It refuses (a *SubjectError naming the field) rather than mangles.
func (t TimerSubject) Subject() (string, error) {
	b := build("build timer subject", t.Space, "ept")
	b.endpoint(t.Endpoint)
	b.add("instance id", t.InstanceID, ValidUID, whyUID)
	b.integer("epoch", t.Epoch)
	b.add("timer id", t.TimerID, ValidID, whyID)
	b.add("phase", t.Phase, func(s string) bool { return s == TimerSchedule || s == TimerArmed || s == TimerFire },
		"is not schedule, armed or fire")
	return b.join()
}

// ParseTimerSubject takes a timer subject apart.
func ParseTimerSubject(subject string) (TimerSubject, error) {
	const op = "parse timer subject"
	c, space, err := open(op, subject, "ept", 5, false)
	if err != nil {
		return TimerSubject{}, err
	}
	t := TimerSubject{Space: space, Endpoint: c.endpoint(), InstanceID: c.next(), Epoch: c.integer(), TimerID: c.next(), Phase: c.next()}
	made, err := t.Subject()
	return rebuilt(op, subject, t, made, err)
}

// RecordWriteSubject is where an instance asks the record writer to change a status of its own:
//
//	cotal.<space>.epr.<endpoint>.<instance>.<epoch>.<kind>.<qualifiers...>
//
// The epoch is believed from the subject, never from the payload.
type RecordWriteSubject struct {
	Space      string
	Endpoint   string
	InstanceID string
	Epoch      uint64
	Record     Key // of a split kind, without part: what is written is always its status
}

// Subject builds the subject. It refuses (a *SubjectError naming the field) rather than mangles.
func (r RecordWriteSubject) Subject() (string, error) {
	b := build("build record write subject", r.Space, "epr")
	b.endpoint(r.Endpoint)
	b.add("instance id", r.InstanceID, ValidUID, whyUID)
	b.integer("epoch", r.Epoch)
	b.absent("record part", r.Record.Part != "")
	k := r.Record
	k.Part = PartStatus
	tok, err := k.tokens()
	if err != nil && b.err == nil {
		b.err = &SubjectError{b.op, "record", err.Error()}
	}
	if err == nil {
		b.tok = append(b.tok, tok[:len(tok)-1]...)
	}
	return b.join()
}

// ParseRecordWriteSubject takes a record write subject apart.
func ParseRecordWriteSubject(subject string) (RecordWriteSubject, error) {
	const op = "parse record write subject"
	c, space, err := open(op, subject, "epr", 5, true)
	if err != nil {
		return RecordWriteSubject{}, err
	}
	r := RecordWriteSubject{Space: space, Endpoint: c.endpoint(), InstanceID: c.next(), Epoch: c.integer()}
	k, err := parseKey(append(c.tok[c.i:len(c.tok):len(c.tok)], PartStatus))
	if err != nil {
		return RecordWriteSubject{}, &SubjectError{op, "record", err.Error()}
	}
	k.Part = ""
	r.Record = k
	made, err := r.Subject()
	return rebuilt(op, subject, r, made, err)
}

// ArtifactSubject is where a contract document is kept: cotal.<space>.epc.<hex of its artifact digest>.
func ArtifactSubject(space, digest string) (string, error) {
	b := build("build artifact subject", space, "epc")
	hex, ok := DigestHex(digest)
	if !ok {
		b.fail("digest", digest, whyDigest)
	}
	b.word(hex)
	return b.join()
}

// ParseArtifactSubject returns the space and the digest.
func ParseArtifactSubject(subject string) (space, digest string, err error) {
	const op = "parse artifact subject"
	c, space, err := open(op, subject, "epc", 1, false)
	if err != nil {
		return "", "", err
	}
	digest = DigestPrefix + c.next()
	made, err := ArtifactSubject(space, digest)
	if _, err := rebuilt(op, subject, digest, made, err); err != nil {
		return "", "", err
	}
	return space, digest, nil
}

// WorkSubject is one item of a work pool:
//
//	cotal.<space>.epw.<endpoint>.<pool>.<owner>.<actor>.<uid>.<id>
type WorkSubject struct {
	Space    string
	Endpoint string
	Pool     string
	Caller   Caller
	ID       string // of the accepted request
}

// Subject builds the subject. It refuses (a *SubjectError naming the field) rather than mangles.
func (w WorkSubject) Subject() (string, error) {
	b := build("build work subject", w.Space, "epw")
	b.endpoint(w.Endpoint)
	b.add("pool", w.Pool, ValidPool, whyCommand)
	b.caller(w.Caller)
	b.add("id", w.ID, ValidID, whyID)
	return b.join()
}

// ParseWorkSubject takes a work subject apart.
func ParseWorkSubject(subject string) (WorkSubject, error) {
	const op = "parse work subject"
	c, space, err := open(op, subject, "epw", 6, false)
	if err != nil {
		return WorkSubject{}, err
	}
	w := WorkSubject{Space: space, Endpoint: c.endpoint(), Pool: c.next(), Caller: c.caller(), ID: c.next()}
	made, err := w.Subject()
	return rebuilt(op, subject, w, made, err)
}

// Directions of a session.
const (
	SessionIn  = "in"  // from the holder to the serving instance
	SessionOut = "out" // from the serving instance to the holder
)

// SessionSubject is one rail of a session:
//
//	cotal.<space>.eps.<endpoint>.<session>.<epoch>.<in|out>
//
// The epoch is the serving instance's: after its restart the subject is another one, so that a session
// is never resumed by accident.
type SessionSubject struct {
	Space     string
	Endpoint  string
	SessionID string
	Epoch     uint64
	Dir       string
}

// Subject builds the subject. It refuses (a *SubjectError naming the field) rather than mangles.
func (s SessionSubject) Subject() (string, error) {
	b := build("build session subject", s.Space, "eps")
	b.endpoint(s.Endpoint)
	b.add("session id", s.SessionID, ValidSessionID, whyNonce)
	b.integer("epoch", s.Epoch)
	b.add("direction", s.Dir, func(d string) bool { return d == SessionIn || d == SessionOut }, "is not in or out")
	return b.join()
}

// ParseSessionSubject takes a session subject apart.
func ParseSessionSubject(subject string) (SessionSubject, error) {
	const op = "parse session subject"
	c, space, err := open(op, subject, "eps", 4, false)
	if err != nil {
		return SessionSubject{}, err
	}
	s := SessionSubject{Space: space, Endpoint: c.endpoint(), SessionID: c.next(), Epoch: c.integer(), Dir: c.next()}
	made, err := s.Subject()
	return rebuilt(op, subject, s, made, err)
}

// RunSubject is the step journal of a workflow run: cotal.<space>.wfj.<run>.
func RunSubject(space, runID string) (string, error) {
	b := build("build run subject", space, "wfj")
	b.add("run id", runID, ValidID, whyID)
	return b.join()
}

// ParseRunSubject returns the space and the run id.
func ParseRunSubject(subject string) (space, runID string, err error) {
	const op = "parse run subject"
	c, space, err := open(op, subject, "wfj", 1, false)
	if err != nil {
		return "", "", err
	}
	runID = c.next()
	made, err := RunSubject(space, runID)
	if _, err := rebuilt(op, subject, runID, made, err); err != nil {
		return "", "", err
	}
	return space, runID, nil
}
