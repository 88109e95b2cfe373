package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cotal-ai/cotal-host/cmd/internal/cli"
	"github.com/cotal-ai/cotal-host/host/trust"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

var update = flag.Bool("update", false, "write docs/cli.md anew")

// line is one kind of line that a command prints with --json.
type line struct {
	about string
	of    reflect.Type
}

// outputs are the lines of every command that has --json, by command path.
var outputs = map[string][]line{
	"cotal spawn": {
		{"how far it is, one line a step", reflect.TypeFor[spawnEvent]()},
		{"the last line, once the spawn was accepted", reflect.TypeFor[spawned]()},
	},
	"cotal goal":            {{"with --follow one line a phase; the last line", reflect.TypeFor[goalReport]()}},
	"cotal ps":              {{"one line a seat", reflect.TypeFor[wire.AgentRow]()}},
	"cotal logs":            {{"one line for each line of output", reflect.TypeFor[logLine]()}},
	"cotal input":           {{"one line", reflect.TypeFor[wire.InputReply]()}},
	"cotal stop":            {{"one line a seat", reflect.TypeFor[stopped]()}},
	"cotal inspect":         {{"one line: a line of `cotal ps`, and", reflect.TypeFor[inspected]()}},
	"cotal status":          {{"one line", reflect.TypeFor[wire.StatusReply]()}},
	"cotal slots":           {{"one line a slot", reflect.TypeFor[wire.SlotRow]()}},
	"cotal models":          {{"one line a connector", reflect.TypeFor[wire.ModelCatalog]()}},
	"cotal personas list":   {{"one line a persona", reflect.TypeFor[personaRow]()}},
	"cotal personas show":   {{"one line", reflect.TypeFor[personaRow]()}},
	"cotal personas define": {{"one line", reflect.TypeFor[wire.DefinePersonaReply]()}},
	"cotal roster":          {{"one line a participant", reflect.TypeFor[rosterRow]()}},
	"cotal send":            {{"one line", reflect.TypeFor[sent]()}},
	"cotal history":         {{"one line a message", reflect.TypeFor[historyRow]()}},
	"cotal purge":           {{"one line", reflect.TypeFor[wire.PurgeReply]()}},
	"cotal describe":        {{"one line", reflect.TypeFor[described]()}},
	"cotal invoke":          {{"one line an answer", reflect.TypeFor[invoked]()}},
	"cotal auth status":     {{"one line a fact", reflect.TypeFor[trust.Fact]()}},
	"cotal auth rotate":     {{"one line", reflect.TypeFor[rotated]()}},
	"cotal auth mint":       {{"one line", reflect.TypeFor[mintedFile]()}},
	"cotal ext list":        {{"one line a plugin", reflect.TypeFor[wire.PluginStatus]()}},
	"cotal ext restart":     {{"one line", reflect.TypeFor[wire.PluginRestartReply]()}},
	"cotal ext reload":      {{"one line", reflect.TypeFor[wire.PluginReloadReply]()}},
	"cotal ext info":        {{"one line a plugin", reflect.TypeFor[extInfo]()}},
	"cotal ext install":     {{"one line", reflect.TypeFor[extChange]()}},
	"cotal ext upgrade":     {{"one line a plugin", reflect.TypeFor[extChange]()}},
	"cotal ext rollback":    {{"one line", reflect.TypeFor[extChange]()}},
	"cotal ext remove":      {{"one line", reflect.TypeFor[extChange]()}},
	"cotal ext enable":      {{"one line", reflect.TypeFor[extChange]()}},
	"cotal ext disable":     {{"one line", reflect.TypeFor[extChange]()}},
	"cotal ext new":         {{"one line", reflect.TypeFor[scaffolded]()}},
	"cotal version":         {{"one line", reflect.TypeFor[versionInfo]()}},
}

// schemaOf is the closed schema of a line.
func schemaOf(t testing.TB, of reflect.Type) *jsonschema.Schema {
	t.Helper()
	part := &jsonschema.Schema{
		Type: "object", Required: []string{"kind"},
		Properties: map[string]*jsonschema.Schema{"kind": {Type: "string"}},
	}
	s, err := jsonschema.ForType(of, &jsonschema.ForOptions{TypeSchemas: map[reflect.Type]*jsonschema.Schema{
		reflect.TypeFor[json.RawMessage](): {}, reflect.TypeFor[wire.Part](): part, reflect.TypeFor[wire.Detail](): part,
	}})
	if err != nil {
		t.Fatalf("schema of %s: %v", of, err)
	}
	return s
}

// checkLine holds a line against the types it may be of.
func checkLine(t testing.TB, text string, of []line) {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Errorf("%q is no JSON: %v", text, err)
		return
	}
	var errs []string
	for _, l := range of {
		r, err := schemaOf(t, l.of).Resolve(nil)
		if err != nil {
			t.Fatal(err)
		}
		if err = r.Validate(v); err == nil {
			return
		}
		errs = append(errs, err.Error())
	}
	t.Errorf("%s\nis none of what docs/cli.md says: %s", text, strings.Join(errs, "\nand: "))
}

// comments are what the source says of the members of structs, by type and member.
func comments(t testing.TB) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, pattern := range []string{"*.go", "../../sdk/wire/*.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(parsed, func(n ast.Node) bool {
				spec, ok := n.(*ast.TypeSpec)
				if !ok {
					return true
				}
				if st, ok := spec.Type.(*ast.StructType); ok {
					for _, f := range st.Fields.List {
						text := strings.TrimSpace(strings.ReplaceAll(f.Comment.Text(), "\n", " "))
						for _, name := range f.Names {
							out[spec.Name.Name+"."+name.Name] = text
						}
					}
				}
				return true
			})
		}
	}
	return out
}

// page makes docs/cli.md.
func page(t testing.TB) []byte {
	t.Helper()
	var b bytes.Buffer
	b.WriteString(`# cotal: every command, and what it prints with --json

Made from the commands by ` + "`go test ./cmd/cotal -run TestCliPage -update`" + `; do not edit. [operating.md](operating.md) says how to work
with them.

With ` + "`--json`" + ` standard output holds JSON lines and nothing else: one object a line, each as soon as it is known. Notes,
progress and errors are on standard error; an error is one line there, and the exit code says what kind it is. A member
that is absent is not known: it is never zero for that. Later versions may add members; those that are here keep
their meaning. Times are epoch milliseconds in UTC, unless the name says otherwise.

## Exit codes

| code | meaning |
|---|---|
`)
	for _, c := range cli.Codes {
		fmt.Fprintf(&b, "| %d | %s |\n", c.Code, c.Meaning)
	}
	root := newRoot(&app{out: cli.NewOutput(&bytes.Buffer{}), errw: &bytes.Buffer{}})
	b.WriteString("\n## Flags of every command\n\n")
	flags(&b, root.PersistentFlags())
	notes := comments(t)
	var walk func(*cobra.Command)
	walk = func(cmd *cobra.Command) {
		if cmd != root {
			section(t, &b, cmd, notes)
		}
		for _, sub := range cmd.Commands() {
			if !sub.Hidden && sub.Name() != "help" && sub.Name() != "completion" {
				walk(sub)
			}
		}
	}
	walk(root)
	return b.Bytes()
}

func section(t testing.TB, b *bytes.Buffer, cmd *cobra.Command, notes map[string]string) {
	fmt.Fprintf(b, "\n## %s\n\n", cmd.CommandPath())
	fmt.Fprintf(b, "%s\n\n```\n%s\n```\n", strings.ReplaceAll(orElse(cmd.Long, cmd.Short+"."), "<", "\\<"), strings.TrimSpace(cmd.UseLine()))
	own := pflag.NewFlagSet("", pflag.ContinueOnError)
	cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
		if f.Name != "help" {
			own.AddFlag(f)
		}
	})
	if own.HasFlags() {
		b.WriteString("\n")
		flags(b, own)
	}
	fmt.Fprintf(b, "\n```\n%s\n```\n", strings.TrimRight(unindent(cmd.Example), "\n"))
	for _, l := range outputs[cmd.CommandPath()] {
		fmt.Fprintf(b, "\nWith `--json`, %s:\n\n| member | type | |\n|---|---|---|\n", l.about)
		skip := map[string]bool{}
		if l.of == reflect.TypeFor[inspected]() { // it is a line of ps, and more
			for i := range reflect.TypeFor[wire.AgentRow]().NumField() {
				name, _, _ := strings.Cut(reflect.TypeFor[wire.AgentRow]().Field(i).Tag.Get("json"), ",")
				skip[name] = true
			}
		}
		members(b, l.of, "", notes, skip)
	}
}

func unindent(text string) string {
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = strings.TrimPrefix(lines[i], "  ")
	}
	return strings.Join(lines, "\n")
}

func flags(b *bytes.Buffer, set *pflag.FlagSet) {
	b.WriteString("| flag | |\n|---|---|\n")
	set.VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		kind, usage := pflag.UnquoteUsage(f)
		name := "--" + f.Name
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		if kind != "" {
			name += " " + kind
		}
		fmt.Fprintf(b, "| `%s` | %s |\n", name, strings.ReplaceAll(usage, "|", "\\|"))
	})
}

// members lists the members of a struct as its JSON has them.
func members(b *bytes.Buffer, of reflect.Type, prefix string, notes map[string]string, skip map[string]bool) {
	for i := range of.NumField() {
		f := of.Field(i)
		name, opts, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "-" || !f.IsExported() {
			continue
		}
		typ := f.Type
		for typ.Kind() == reflect.Pointer {
			typ = typ.Elem()
		}
		if f.Anonymous && name == "" {
			members(b, typ, prefix, notes, skip)
			continue
		}
		if prefix == "" && skip[name] {
			continue
		}
		kind, below, path := kindOf(typ), typ, prefix+name
		if typ.Kind() == reflect.Slice && typ != reflect.TypeFor[json.RawMessage]() {
			below, path = typ.Elem(), path+"[]"
		}
		var note []string
		if strings.Contains(opts, "omitempty") {
			note = append(note, "may be absent")
		}
		if text := notes[of.Name()+"."+f.Name]; text != "" {
			note = append(note, text)
		}
		fmt.Fprintf(b, "| `%s` | %s | %s |\n", prefix+name, kind, strings.ReplaceAll(strings.Join(note, ". "), "|", "\\|"))
		if below.Kind() == reflect.Struct && below != reflect.TypeFor[wire.Part]() && below != reflect.TypeFor[wire.Detail]() {
			members(b, below, path+".", notes, nil)
		}
	}
}

func kindOf(t reflect.Type) string {
	switch {
	case t == reflect.TypeFor[json.RawMessage]():
		return "anything"
	case t == reflect.TypeFor[wire.Part]():
		return "object"
	}
	switch t.Kind() {
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return "string, base64"
		}
		return "array of " + kindOf(t.Elem())
	case reflect.Map:
		return "object of " + kindOf(t.Elem())
	case reflect.Struct:
		return "object"
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "string"
	case reflect.Interface:
		return "anything"
	}
	return "integer"
}

func TestCliPage(t *testing.T) {
	const file = "../../docs/cli.md"
	want := page(t)
	if *update {
		if err := os.WriteFile(file, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("docs/cli.md is not what the commands say (%v): go test ./cmd/cotal -run TestCliPage -update", err)
	}
	for path := range outputs {
		if !bytes.Contains(got, []byte("\n## "+path+"\n")) {
			t.Errorf("there is no command %s", path)
		}
	}
	root := newRoot(&app{out: cli.NewOutput(&bytes.Buffer{}), errw: &bytes.Buffer{}})
	var walk func(*cobra.Command)
	walk = func(cmd *cobra.Command) {
		if cmd.Flags().Lookup("json") != nil && outputs[cmd.CommandPath()] == nil && !cmd.DisableFlagParsing { // verify's is a report
			t.Errorf("nothing says what %s --json prints", cmd.CommandPath())
		}
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk(root)
	// No type stands for two things, and every line has a name.
	for path, lines := range outputs {
		if slices.ContainsFunc(lines, func(l line) bool { return l.about == "" || l.of.Kind() != reflect.Struct }) {
			t.Errorf("%s: %v", path, lines)
		}
	}
}
