package wire

import "slices"

// Rails are the three subscriptions of one command: a responder never subscribes a wildcard over
// commands, so that what it does not serve is told apart by the broker.
type Rails struct {
	Queue    string // queue group of One
	One      string // the class: any one instance
	Instance string // this instance
	All      string // every instance
}

// CommandRails builds the subscriptions of one command. With versioned they are those of issued
// credentials (ep.v1), else those of everybody else; the two are disjoint.
func CommandRails(space, endpoint, instanceID, command string, versioned bool) (Rails, error) {
	rail := func(mode Mode) (string, error) {
		b := build("build serve subject", space, "ep")
		if versioned {
			b.word("v1")
		}
		b.word(string(mode))
		b.endpoint(endpoint)
		if mode == ModeInstance {
			b.add("instance id", instanceID, ValidUID, whyUID)
		}
		b.add("command", command, ValidCommand, whyCommand)
		b.word(">")
		return b.join()
	}
	r := Rails{Queue: EndpointToken(endpoint)}
	for mode, dst := range map[Mode]*string{ModeOne: &r.One, ModeInstance: &r.Instance, ModeAll: &r.All} {
		s, err := rail(mode)
		if err != nil {
			return Rails{}, err
		}
		*dst = s
	}
	return r, nil
}

// CallerReplies is what a caller may read on the reply rail: the replies of any incarnation of any
// endpoint, to this life of this principal. The arity is exact.
func CallerReplies(space string, c Caller, versioned bool) (string, error) {
	b := build("build reply grant", space, "ep")
	b.tok = append(b.tok, replyWords(versioned)...)
	b.tok = append(b.tok, "*", "*", "*")
	b.caller(c)
	b.tok = append(b.tok, stars(versioned, 1)...)
	return b.join()
}

// ResponderReplies is what an incarnation may publish on the reply rail: to any caller, under its own
// endpoint, instance and epoch.
func ResponderReplies(space, endpoint, instanceID string, epoch uint64, versioned bool) (string, error) {
	b := build("build reply grant", space, "ep")
	b.tok = append(b.tok, replyWords(versioned)...)
	b.endpoint(endpoint)
	b.add("instance id", instanceID, ValidUID, whyUID)
	b.integer("epoch", epoch)
	b.tok = append(b.tok, stars(versioned, 4)...)
	return b.join()
}

func replyWords(versioned bool) []string {
	if versioned {
		return []string{"v1", "reply"}
	}
	return []string{"reply"}
}

func stars(versioned bool, n int) []string {
	if versioned {
		n++
	}
	return slices.Repeat([]string{"*"}, n)
}
