package wire

import (
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"unicode/utf8"
)

// DecodeArgs decodes command arguments into dst, a pointer to a struct. Absent arguments are the
// empty object. It refuses with bad-request, not-executed, naming the field: unknown fields at
// any depth, names in another case, duplicates, wrong types, and, when dst has a method
// Check() error, what that refuses.
func DecodeArgs(raw json.RawMessage, dst any) *Error {
	if len(raw) == 0 {
		raw = json.RawMessage("{}")
	}
	n, err := parseJSON(raw)
	if err != nil {
		return Refuse(CodeBadRequest, "args: %s", err)
	}
	if n.kind != kindObject {
		return Refuse(CodeBadRequest, "args: is %s, not an object", n.kind)
	}
	if err := unknownField(&n, reflect.TypeOf(dst), ""); err != nil {
		return Refuse(CodeBadRequest, "args: %s", err)
	}
	if err := decodeInto(&n, raw, dst); err != nil {
		var te *json.UnmarshalTypeError
		if errors.As(err, &te) && te.Field != "" {
			return Refuse(CodeBadRequest, "args: %s is %s, not %s", te.Field, te.Value, typeWord(te.Type))
		}
		return Refuse(CodeBadRequest, "args: %s", err)
	}
	if c, ok := dst.(interface{ Check() error }); ok {
		if err := c.Check(); err != nil {
			return Refuse(CodeBadRequest, "args: %s", err)
		}
	}
	return nil
}

// decodeInto is json.Unmarshal of raw, whose node is n, into dst. The struct of strings, booleans and lists of
// strings that most arguments are is filled from the node, which has all of its text decoded already: a large
// text would be read twice more.
func decodeInto(n *node, raw json.RawMessage, dst any) error {
	v := reflect.ValueOf(dst)
	if v.Kind() != reflect.Pointer || v.IsNil() || v.Elem().Kind() != reflect.Struct {
		return json.Unmarshal(raw, dst)
	}
	filled := reflect.New(v.Elem().Type()).Elem()
	filled.Set(v.Elem())
	if !fill(n, filled) {
		return json.Unmarshal(raw, dst)
	}
	v.Elem().Set(filled)
	return nil
}

// fill sets v from n and reports false for anything but the plainest: encoding/json does that, and says what is
// wrong with it. The names of n are known to be fields of v.
func fill(n *node, v reflect.Value) bool {
	if v.CanAddr() {
		switch v.Addr().Interface().(type) {
		case json.Unmarshaler, encoding.TextUnmarshaler:
			return false
		}
	}
	switch {
	case n.kind == kindString && v.Kind() == reflect.String:
		v.SetString(n.str)
	case (n.kind == kindTrue || n.kind == kindFalse) && v.Kind() == reflect.Bool:
		v.SetBool(n.kind == kindTrue)
	case (n.kind == kindTrue || n.kind == kindFalse) && v.Kind() == reflect.Pointer && v.Type().Elem().Kind() == reflect.Bool:
		v.Set(reflect.New(v.Type().Elem()))
		v.Elem().SetBool(n.kind == kindTrue)
	case n.kind == kindArray && v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.String:
		list := reflect.MakeSlice(v.Type(), len(n.items), len(n.items))
		for i := range n.items {
			if !fill(&n.items[i], list.Index(i)) {
				return false
			}
		}
		v.Set(list)
	case n.kind == kindObject && v.Kind() == reflect.Struct:
		for i := range n.members {
			f, ok := fieldIndex(v.Type(), n.members[i].name)
			if !ok || strings.Contains(v.Type().Field(f).Tag.Get("json"), ",string") || v.Type().Field(f).Anonymous || !fill(&n.members[i].value, v.Field(f)) {
				return false
			}
		}
	default:
		return false
	}
	return true
}

func typeWord(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "a boolean"
	case reflect.Map, reflect.Struct:
		return "an object"
	case reflect.Slice:
		return "an array"
	default:
		return "a number (" + t.String() + ")"
	}
}

var rawMessage = reflect.TypeFor[json.RawMessage]()

// unknownArg is what is said of a member that nobody knows, behind its name.
const unknownArg = " is not an argument of this command"

// unknownField walks a value beside the type it is for and names the first member that has no field.
func unknownField(n *node, t reflect.Type, path string) error {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case t == rawMessage:
		return nil
	case t.Kind() == reflect.Struct && n.kind == kindObject:
		for i := range n.members {
			m := &n.members[i]
			ft, ok := fieldType(t, m.name)
			if !ok {
				return &FieldError{path + m.name, unknownArg[1:] + "; it takes " + takes(t, path)}
			}
			if err := unknownField(&m.value, ft, path+m.name+"."); err != nil {
				return err
			}
		}
	case t.Kind() == reflect.Slice && n.kind == kindArray:
		for i := range n.items {
			if err := unknownField(&n.items[i], t.Elem(), fmt.Sprintf("%s%d.", path, i)); err != nil {
				return err
			}
		}
	}
	return nil
}

func fieldType(t reflect.Type, name string) (reflect.Type, bool) {
	if i, ok := fieldIndex(t, name); ok {
		return t.Field(i).Type, true
	}
	return nil, false
}

// takes names the members of a struct at path, in the order of their declaration.
func takes(t reflect.Type, path string) string {
	var out []string
	for i := range t.NumField() {
		f := t.Field(i)
		tag, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if tag == "" {
			tag = f.Name
		}
		if f.IsExported() && tag != "-" {
			out = append(out, path+tag)
		}
	}
	if len(out) == 0 {
		return "none"
	}
	return strings.Join(out, ", ")
}

func fieldIndex(t reflect.Type, name string) (int, bool) {
	for i := range t.NumField() {
		f := t.Field(i)
		tag, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if tag == "" {
			tag = f.Name
		}
		if f.IsExported() && tag == name && tag != "-" {
			return i, true
		}
	}
	return 0, false
}

// Check refuses an empty name.
func (a *NameArgs) Check() error { return needName("name", a.Name) }

// Check refuses a spawn without a persona reference, text that is there and blank where that could be taken for
// absent, lists with something else than channels in them, and a supervision without numbers.
func (a *SpawnArgs) Check() error {
	if err := needName("name", a.Name); err != nil {
		return err
	}
	for _, f := range []struct {
		field string
		value *string
	}{{"resume", a.Resume}, {"resumeClaim", a.ResumeClaim}, {"resumeAgent", a.ResumeAgent}, {"variant", a.Variant}} {
		if f.value != nil && strings.TrimSpace(*f.value) == "" {
			return &FieldError{f.field, "is blank; name one, or leave it out"}
		}
	}
	if err := checkChannels([]channelList{
		{"subscribe", a.Subscribe}, {"allowSubscribe", a.AllowSubscribe}, {"allowPublish", a.AllowPublish},
	}); err != nil {
		return err
	}
	for i, name := range a.ShareTools {
		if name == "" {
			return &FieldError{fmt.Sprintf("shareTools.%d", i), "is empty"}
		}
	}
	if s := a.Supervise; s != nil {
		switch {
		case s.Restarts < 1:
			return &FieldError{"supervise.restarts", "is missing or below 1"}
		case s.Restarts > MaxSuperviseRestarts:
			return &FieldError{"supervise.restarts", fmt.Sprintf("is %d, more than %d", s.Restarts, MaxSuperviseRestarts)}
		case s.WindowMs < 1:
			return &FieldError{"supervise.windowMs", "is missing or below 1"}
		case s.WindowMs > MaxSuperviseWindowMs:
			return &FieldError{"supervise.windowMs", fmt.Sprintf("is %d, more than %d (30 days)", s.WindowMs, int64(MaxSuperviseWindowMs))}
		}
	}
	return nil
}

type channelList struct {
	field string
	list  []string
}

func checkChannels(lists []channelList) error {
	for _, l := range lists {
		for i, c := range l.list {
			if !ValidChannelPattern(c) {
				return &FieldError{fmt.Sprintf("%s.%d", l.field, i), tokenProblem(c, "is not a channel or a pattern of channels")}
			}
		}
	}
	return nil
}

// Check refuses a goal id that breaks its grammar.
func (a *GoalResultArgs) Check() error {
	if !ValidID(a.GoalID) {
		return &FieldError{"goalId", tokenProblem(a.GoalID, whyID)}
	}
	return nil
}

// MaxKeys bounds InputArgs.Keys.
const MaxKeys = 64

// Check refuses an empty text and one over MaxText bytes, and more than MaxKeys keys.
func (a *InputArgs) Check() error {
	switch {
	case len(a.Keys) > MaxKeys:
		return &FieldError{"keys", fmt.Sprintf("are %d, more than %d", len(a.Keys), MaxKeys)}
	case len(a.Keys) > 0 && a.Text != "":
		return &FieldError{"keys", "cannot be sent together with a text"}
	case len(a.Keys) > 0:
		return nil
	case a.Text == "":
		return &FieldError{"text", "is missing or empty, and there are no keys: exactly one of the two is needed"}
	case len(a.Text) > MaxText:
		return &FieldError{"text", fmt.Sprintf("is %d bytes, more than %d", len(a.Text), MaxText)}
	case !utf8.ValidString(a.Text):
		return &FieldError{"text", "is not UTF-8"}
	}
	return nil
}

func needName(field, v string) error {
	if v == "" {
		return &FieldError{field, "is missing or empty"}
	}
	return nil
}
