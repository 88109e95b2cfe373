package sdk

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strings"
)

// DecodeOptions reads launchOptions into a struct with json tags. An option the struct does not have and
// a value of the wrong type are refused, naming the option and what it takes, so that a typing error
// never launches something else than was meant. Errors: ErrInvalid.
//
// A value given as --opt key=value arrives as a string, so numbers should accept both.
func DecodeOptions(options map[string]any, into any) error {
	known := map[string]string{} // option -> what it takes
	var names []string
	t := reflect.TypeOf(into).Elem()
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		known[name] = typeInWords(t.Field(i).Type)
		names = append(names, name)
	}
	for name, value := range options {
		if _, ok := known[name]; !ok { // checked by hand: encoding/json would accept other capitals
			return Errorf(ErrInvalid, "unknown launch option %q; this connector takes %s", name, strings.Join(names, ", "))
		}
		if value == nil {
			return Errorf(ErrInvalid, "launchOptions.%s has no value; leave it out or give %s", name, known[name])
		}
	}
	data, err := json.Marshal(options)
	if err != nil {
		return Errorf(ErrInvalid, "launchOptions: %v", err)
	}
	err = json.NewDecoder(bytes.NewReader(data)).Decode(into)
	var mismatch *json.UnmarshalTypeError
	if errors.As(err, &mismatch) {
		name, _, _ := strings.Cut(mismatch.Field, ".")
		given := strings.NewReplacer("array", "list", "object", "map").Replace(mismatch.Value)
		return Errorf(ErrInvalid, "launchOptions.%s must be %s, not a %s", name, known[name], given)
	}
	if err != nil {
		return Errorf(ErrInvalid, "launchOptions: %v", err)
	}
	return nil
}

// Decode reads the [plugin.config] table into a struct with json tags. A key that the struct does not have is refused, so
// that a typing error is never taken for no configuration. Errors: ErrInvalid, naming the key and what the plugin takes.
func (c PluginConfig) Decode(plugin string, into any) error {
	if len(c.Config) == 0 {
		return nil
	}
	dec := json.NewDecoder(bytes.NewReader(c.Config))
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		return Errorf(ErrInvalid, "[plugin.config] of %s takes %s: %v", plugin, strings.Join(keys(reflect.TypeOf(into).Elem()), ", "), err)
	}
	return nil
}

// keys are the names of a struct's members in JSON, those of embedded structs included.
func keys(t reflect.Type) []string {
	var names []string
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && name == "":
			names = append(names, keys(f.Type)...)
		case name != "" && name != "-":
			names = append(names, name)
		}
	}
	return names
}

func typeInWords(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Slice:
		return `a list of strings, as in ["npm", "start"]`
	case reflect.Map:
		return `a map of strings, as in {"PORT": "8080"}`
	case reflect.Bool:
		return "true or false"
	case reflect.Int:
		return "a number"
	}
	return "a string"
}

// Binary returns the absolute path of an executable that ConnectorFacts.Requires names, as the host
// resolved it. Errors: ErrNotFound.
func (r LaunchRequest) Binary(name string) (string, error) {
	if path := r.Binaries[name]; path != "" {
		return path, nil
	}
	return "", noBinary(name)
}

// Binary returns the absolute path of an executable that ConnectorFacts.Requires names. Errors: ErrNotFound.
func (q ModelQuery) Binary(name string) (string, error) {
	if path := q.Binaries[name]; path != "" {
		return path, nil
	}
	return "", noBinary(name)
}

func noBinary(name string) error {
	return Errorf(ErrNotFound, "the host gave no path for %q; the connector must name it in requires", name)
}

// Getenv returns the value of a variable in a K=V list, the last one when it stands there twice.
func Getenv(env []string, name string) string {
	for _, kv := range slices.Backward(env) {
		if key, value, ok := strings.Cut(kv, "="); ok && key == name {
			return value
		}
	}
	return ""
}

// SetEnv returns env with the given K=V entries in place of any entry of the same name. It leaves env as
// it is and keeps its order, so the same request gives the same environment.
func SetEnv(env []string, set ...string) []string {
	out := slices.Clone(env)
	for _, kv := range set {
		key, _, _ := strings.Cut(kv, "=")
		out = slices.DeleteFunc(out, func(have string) bool { return strings.HasPrefix(have, key+"=") })
		out = append(out, kv)
	}
	return out
}

// UnsetEnv returns env without the variables of these names; a name that ends in * stands for all that begin so.
func UnsetEnv(env []string, names ...string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(kv string) bool {
		key, _, _ := strings.Cut(kv, "=")
		return slices.ContainsFunc(names, func(name string) bool {
			prefix, many := strings.CutSuffix(name, "*")
			return key == name || many && strings.HasPrefix(key, prefix)
		})
	})
}
