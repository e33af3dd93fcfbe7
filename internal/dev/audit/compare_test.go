package audit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// figures are the values in an artefact, by their path: "peak.categories[0].bytes".
type figures map[string]any

// between is a truth known as a range.
type between struct{ low, high float64 }

// fromJSON are the figures of a document.
func fromJSON(t testing.TB, document []byte) figures {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(document))
	d.UseNumber()
	var v any
	require.NoError(t, d.Decode(&v), "%s", document)
	f := figures{}
	f.add("", reflect.ValueOf(v))
	return f
}

// of are the figures of the exported fields of a struct.
func of(v any) figures {
	f := figures{}
	f.add("", reflect.ValueOf(v))
	return f
}

// add adds the parts of a value.
func (f figures) add(path string, v reflect.Value) {
	for v.Kind() == reflect.Interface || v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return
		}
		v = v.Elem()
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if field := v.Type().Field(i); field.IsExported() {
				f.add(join(path, field.Name), v.Field(i))
			}
		}
	case reflect.Map:
		for _, k := range v.MapKeys() {
			f.add(join(path, fmt.Sprint(k)), v.MapIndex(k))
		}
	case reflect.Slice:
		for i := range v.Len() {
			f.add(fmt.Sprintf("%s[%d]", path, i), v.Index(i))
		}
	default:
		f[path] = v.Interface()
	}
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// shown has each compared figure, by artefact and path, and whether it was ever other than zero.
var shown = map[string]map[string]bool{}

var places = regexp.MustCompile(`\[\d+\]`)

// requireTrue compares an artefact with the truth: both have the same figures with the same values.
func requireTrue(t testing.TB, artefact string, got, want figures, about ...any) {
	t.Helper()
	if shown[artefact] == nil {
		shown[artefact] = map[string]bool{}
	}
	var wrong []string
	for name, truth := range want {
		figure, ok := got[name]
		switch {
		case !ok:
			wrong = append(wrong, fmt.Sprintf("%s is not shown: want %v", name, truth))
		case !equal(figure, truth):
			wrong = append(wrong, fmt.Sprintf("%s is %v: want %v", name, figure, truth))
		}
	}
	for name, figure := range got {
		if _, ok := want[name]; !ok {
			wrong = append(wrong, fmt.Sprintf("%s is %v: the books have no such figure", name, figure))
		}
		place := places.ReplaceAllString(name, "[]")
		shown[artefact][place] = shown[artefact][place] || !slices.Contains([]string{"0", "false", "", "0s"}, fmt.Sprint(figure))
	}
	slices.Sort(wrong)
	if len(wrong) > 0 {
		require.Fail(t, artefact+": "+fmt.Sprint(about...), "%s", strings.Join(wrong[:min(len(wrong), 30)], "\n"))
	}
}

func equal(figure, truth any) bool {
	if r, ok := truth.(between); ok {
		var v float64
		if _, err := fmt.Sscan(fmt.Sprint(reflectNumber(figure)), &v); err != nil {
			return false
		}
		return r.low <= v && v <= r.high
	}
	return fmt.Sprint(figure) == fmt.Sprint(truth)
}

// reflectNumber is a figure without its type's String method.
func reflectNumber(v any) any {
	if r := reflect.ValueOf(v); r.CanInt() {
		return r.Int()
	}
	return v
}

// requireShown fails for figures of an artefact that were zero in each program, unless excused:
// without other values the audit proves little.
func requireShown(t testing.TB, artefact string, excused ...string) {
	t.Helper()
	require.NotEmpty(t, shown[artefact], artefact)
	for place, ever := range shown[artefact] {
		if !ever && !slices.ContainsFunc(excused, func(e string) bool { return strings.HasPrefix(place, e) }) {
			require.Fail(t, "a figure that was zero in each program", "%s: %s", artefact, place)
		}
	}
}
