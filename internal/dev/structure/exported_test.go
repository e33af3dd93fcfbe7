package structure

import (
	"fmt"
	"go/types"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const exportedFile = "testdata/exported.txt"

// few is the most exported methods of a type that exported.txt need not list.
const few = 10

// TestExported limits the number of exported functions and methods of each package, and of each
// type with more than a few, to testdata/exported.txt. A rise needs a line with the reason there;
// after a fall -update writes the lower number.
func TestExported(t *testing.T) {
	counts := map[string]int{}
	for _, p := range public(t) {
		countExported(p.short(), checked(t, p), counts)
	}
	text, err := os.ReadFile(exportedFile)
	require.NoError(t, err)
	l, err := parseExported(string(text))
	require.NoError(t, err)
	for _, name := range l.names(nil) {
		if tags == "" && strings.HasPrefix(name, "device/cuda") { // it has names in builds with the tag cuda only
			counts[name] = l.base[name] + l.raised[name]
		}
	}
	if *update {
		l.lower(counts)
		require.NoError(t, os.WriteFile(exportedFile, []byte(l.String()), 0o644))
	}
	for _, problem := range l.compare(counts) {
		t.Error(problem)
	}
}

// countExported counts a package's exported functions and methods, and the methods of each of its
// exported types. Promoted methods count, unless their own type is counted.
func countExported(path string, pkg *types.Package, counts map[string]int) {
	for _, name := range pkg.Scope().Names() {
		object := pkg.Scope().Lookup(name)
		if !object.Exported() {
			continue
		}
		switch o := object.(type) {
		case *types.Func:
			counts[path]++
		case *types.TypeName:
			if o.IsAlias() {
				continue
			}
			t := o.Type()
			if !types.IsInterface(t) {
				t = types.NewPointer(t)
			}
			set, n := types.NewMethodSet(t), 0
			for m := range set.Methods() {
				if m.Obj().Exported() && !promotedFromExported(pkg, m) {
					n++
				}
			}
			counts[path] += n
			if n > few {
				counts[path+"."+name] = n
			}
		}
	}
}

// promotedFromExported reports whether an exported type of the package has the method and declares
// it.
func promotedFromExported(pkg *types.Package, m *types.Selection) bool {
	if len(m.Index()) == 1 {
		return false
	}
	t := m.Obj().(*types.Func).Signature().Recv().Type()
	if p, ok := t.(*types.Pointer); ok {
		t = p.Elem()
	}
	named, ok := t.(*types.Named)
	return ok && named.Obj().Pkg() == pkg && named.Obj().Exported()
}

// exportedList has the numbers of exported.txt, with the lines of the later rises.
type exportedList struct {
	head   []string // comments
	base   map[string]int
	rises  map[string][]string // "+1 why"
	raised map[string]int
}

func parseExported(text string) (*exportedList, error) {
	l := &exportedList{base: map[string]int{}, rises: map[string][]string{}, raised: map[string]int{}}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			l.head = append(l.head, line)
			continue
		}
		name, rest, _ := strings.Cut(line, " ")
		number, why, _ := strings.Cut(rest, " ")
		n, err := strconv.Atoi(number)
		switch {
		case err != nil || n <= 0:
			return nil, fmt.Errorf("%q: want a name and a number, or a name, +number and the reason", line)
		case !strings.HasPrefix(number, "+") && why == "" && l.base[name] == 0:
			l.base[name] = n
		case strings.HasPrefix(number, "+") && why != "":
			l.rises[name] = append(l.rises[name], rest)
			l.raised[name] += n
		default:
			return nil, fmt.Errorf("%q: want one number for each name, and for a rise +number and the reason", line)
		}
	}
	return l, nil
}

// compare returns the differences from the counts.
func (l *exportedList) compare(counts map[string]int) (problems []string) {
	for _, name := range l.names(counts) {
		listed, n := l.base[name]+l.raised[name], counts[name]
		if n > listed {
			problems = append(problems, fmt.Sprintf("%s exports %d functions and methods; %s lists %d: export fewer, or add the line \"%s +%d REASON\"", name, n, exportedFile, listed, name, n-listed))
		} else if n < listed {
			problems = append(problems, fmt.Sprintf("%s exports %d functions and methods; %s lists %d: go test ./internal/dev/structure -update lowers it", name, n, exportedFile, listed))
		}
	}
	return problems
}

// lower adopts lower counts.
func (l *exportedList) lower(counts map[string]int) {
	for _, name := range l.names(counts) {
		if n := counts[name]; n < l.base[name]+l.raised[name] {
			l.base[name] = n
			delete(l.rises, name)
			delete(l.raised, name)
			if n == 0 {
				delete(l.base, name)
			}
		}
	}
}

func (l *exportedList) names(counts map[string]int) []string {
	all := maps.Clone(l.base)
	maps.Copy(all, counts)
	maps.Copy(all, l.raised)
	return slices.Sorted(maps.Keys(all))
}

func (l *exportedList) String() string {
	var b strings.Builder
	for _, line := range l.head {
		fmt.Fprintln(&b, line)
	}
	for _, name := range l.names(nil) {
		if l.base[name] > 0 {
			fmt.Fprintln(&b, name, l.base[name])
		}
		for _, rise := range l.rises[name] {
			fmt.Fprintln(&b, name, rise)
		}
	}
	return b.String()
}

func TestExportedList(t *testing.T) {
	const text = "# numbers\na 3\na.T 12\na.T +1 it closes\nb +2 a new package\n"
	l, err := parseExported(text)
	require.NoError(t, err)
	require.Equal(t, text, l.String())
	same := map[string]int{"a": 3, "a.T": 13, "b": 2}
	require.Empty(t, l.compare(same))
	problems := l.compare(map[string]int{"a": 4, "a.T": 12, "b": 2, "c": 1})
	require.Len(t, problems, 3)
	require.Contains(t, problems[0], `add the line "a +1 REASON"`)
	require.Contains(t, problems[1], "a.T exports 12 functions and methods; testdata/exported.txt lists 13")
	require.Contains(t, problems[2], `"c +1 REASON"`)
	l.lower(map[string]int{"a": 4, "a.T": 12})
	require.Equal(t, "# numbers\na 3\na.T 12\n", l.String(), "falls are taken over, rises are not")
	for _, wrong := range []string{"a", "a x", "a 0", "a 3 why", "a +1", "a 3\na 4"} {
		_, err := parseExported(wrong)
		require.Error(t, err, wrong)
	}
}

func TestCountExported(t *testing.T) {
	counts := map[string]int{}
	for _, p := range public(t) {
		if p.short() == "device" {
			countExported("device", checked(t, p), counts)
		}
	}
	require.Greater(t, counts["device"], 60)
	require.Greater(t, counts["device.Device"], few, "an interface")
	require.NotContains(t, counts, "device.Event")
}
