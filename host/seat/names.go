package seat

import (
	"fmt"
	"strings"

	"github.com/cotal-ai/cotal-host/host/persona"
)

// reservedPrefix belongs to chat sessions.
const reservedPrefix = "chat_"

// checkName returns why an alias cannot be used, or nil.
func checkName(name string) error {
	if strings.HasPrefix(name, reservedPrefix) {
		return fmt.Errorf("name %q begins with %s, which is reserved", name, reservedPrefix)
	}
	return persona.CheckName(name)
}

// names gives out aliases. A numbered name is never issued twice in one process once a seat ran
// under it, even after its holder ended: readers could not tell the two apart. A base name is reusable for ever.
type names struct {
	numbered map[string]bool
}

// errNameHeld says that a pinned name is taken.
type errNameHeld struct{ name, by string }

func (e errNameHeld) Error() string {
	return fmt.Sprintf("name %q is held by a seat that is %s; stop it first, or choose another --name", e.name, e.by)
}

// giveBack frees a numbered name whose seat never ran: nothing was ever read under it.
func (n *names) giveBack(name string) { delete(n.numbered, name) }

// allocate returns the alias for a spawn. held tells who holds a name ("" when free). A pinned name is
// refused when held; a name that came from a persona is numbered name_2, name_3, ….
func (n *names) allocate(base string, pinned bool, held func(string) string) (string, error) {
	if err := checkName(base); err != nil {
		return "", err
	}
	by := held(base)
	if by == "" {
		return base, nil
	}
	if pinned {
		return "", errNameHeld{base, by}
	}
	if n.numbered == nil {
		n.numbered = map[string]bool{}
	}
	for i := 2; ; i++ {
		name := fmt.Sprintf("%s_%d", base, i)
		if n.numbered[name] || held(name) != "" {
			continue
		}
		if err := checkName(name); err != nil {
			return "", err
		}
		n.numbered[name] = true
		return name, nil
	}
}
