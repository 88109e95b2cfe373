package sdk

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// CheckLaunch refuses a request that a connector with this description cannot launch: one that has what is not
// declared, or lacks what is to be minted, or contradicts itself, or whose prompt no program can be given. The host
// refuses most of it before anything is made; this is the backstop, and the first thing that a BuildLaunch does.
//
// Errors: ErrUnsupported, ErrInvalid; each names the field.
func (i Info) CheckLaunch(req LaunchRequest) error {
	f := i.Connector
	for _, c := range []struct {
		has, may bool
		what     string
	}{
		{req.Prompt != "", f.SupportsPrompt, "prompt"},
		{req.Model != "", f.SupportsModel, "model"},
		{req.Variant != "", f.SupportsModelVariant, "variant"},
		{req.Resume != "", f.SupportsResume, "resume"},
		{req.Continue != "", f.SupportsSessionContinuation, "continueSession"},
	} {
		if c.has && !c.may {
			return Errorf(ErrUnsupported, "connector %s does not support %s; leave it out", i.Name, c.what)
		}
	}
	if m := f.Mints; len(req.Ports) < m.Ports || len(req.Secrets) < m.Secrets || len(req.SessionIDs) < m.SessionIDs {
		return Errorf(ErrInvalid, "connector %s needs %s minted by the host", i.Name, m.inWords())
	}
	switch {
	case req.Resume != "" && req.Continue != "":
		return Errorf(ErrInvalid, "resume and continueSession exclude each other: fork a session, or reopen it")
	case req.Prompt != "" && strings.TrimSpace(req.Prompt) == "":
		return Errorf(ErrInvalid, "the prompt is blank")
	case strings.Contains(req.Prompt, "\x00"):
		return Errorf(ErrInvalid, "the prompt holds a NUL byte")
	}
	return nil
}

// inWords is "one port and 2 secrets".
func (m MintCounts) inWords() string {
	var words []string
	for _, c := range []struct {
		n    int
		what string
	}{{m.Ports, "port"}, {m.Secrets, "secret"}, {m.SessionIDs, "session id"}} {
		switch {
		case c.n == 1:
			words = append(words, "one "+c.what)
		case c.n > 1:
			words = append(words, fmt.Sprintf("%d %ss", c.n, c.what))
		}
	}
	return strings.Join(words, " and ")
}

// CheckSession refuses a session to fork or to reopen whose id is none of the program's. what says in words what it
// should have been, and how ids are found: "session of Demo; `demo list` shows ids such as d-17". Errors: ErrInvalid.
func (r LaunchRequest) CheckSession(id *regexp.Regexp, what string) error {
	for _, s := range []struct{ field, id string }{{"resume", r.Resume}, {"continueSession", r.Continue}} {
		if s.id != "" && !id.MatchString(s.id) {
			return Errorf(ErrInvalid, "%s %q is no %s", s.field, s.id, what)
		}
	}
	return nil
}

// AndNetworkEnv are names of host variables, as for ConnectorFacts.EnvAllow, and those by which programs go through a
// proxy and trust a private certificate authority: without them a seat waits where the user's shell would not.
func AndNetworkEnv(names ...string) []string {
	return append(slices.Clip(names), "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
		"NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE", "SSL_CERT_DIR")
}

// Environment is the environment of the seat: BaseEnv, what tells a program which seat it is in, and set.
func (r LaunchRequest) Environment(set ...string) []string {
	env := SetEnv(r.BaseEnv, "COTAL_SPACE="+r.Space, "COTAL_NAME="+r.Name)
	if r.Role != "" {
		env = SetEnv(env, "COTAL_ROLE="+r.Role)
	}
	return SetEnv(env, set...)
}

// OptionFile is the path of the regular file that a launch option names, absolute: a relative one is of the workspace.
// An empty one stays empty. Errors: ErrNotFound, ErrInvalid; both name the option.
func (r LaunchRequest) OptionFile(option, path string) (string, error) {
	return r.optionPath(option, path, os.FileMode.IsRegular)
}

// OptionDir is OptionFile for a directory.
func (r LaunchRequest) OptionDir(option, path string) (string, error) {
	return r.optionPath(option, path, os.FileMode.IsDir)
}

func (r LaunchRequest) optionPath(option, path string, is func(os.FileMode) bool) (string, error) {
	if path == "" {
		return "", nil
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(r.WorkspaceRoot, path)
	}
	st, err := os.Stat(path)
	switch {
	case err != nil:
		return "", Errorf(ErrNotFound, "launchOptions.%s: %v", option, err)
	case !is(st.Mode()):
		return "", Errorf(ErrInvalid, "launchOptions.%s: %s is the wrong kind of file", option, path)
	}
	return path, nil
}

// OneOf refuses a value of a launch option that is none of those it takes. Errors: ErrInvalid.
func OneOf(option, value string, takes ...string) error {
	if slices.Contains(takes, value) {
		return nil
	}
	return Errorf(ErrInvalid, "launchOptions.%s is %s, not %q", option, orList(takes), value)
}

// orList is "a, b or c".
func orList(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " or " + words[last]
}
