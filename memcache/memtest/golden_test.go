package memtest_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/memcache/memtest"
)

// set sets a flag for a test.
func set(t *testing.T, name string) {
	t.Helper()
	require.NoError(t, flag.Set(name, "true"))
	t.Cleanup(func() { require.NoError(t, flag.Set(name, "false")) })
}

// steps are the blocks of a golden test.
type steps struct {
	cache *memcache.Cache
	run   func(t testing.TB, sizes ...int64) func()
}

// newSteps returns functions that allocate and free blocks of the given sizes, in modules a, b, and
// so on.
func newSteps(t *testing.T) steps {
	cache, s := open(t)
	return steps{cache, func(t testing.TB, sizes ...int64) func() {
		return func() {
			var blocks []memcache.Block
			for i, n := range sizes {
				if n > 0 {
					blocks = append(blocks, alloc(t, cache, s, memcache.CategoryActivation, string(rune('a'+i)), n))
				}
			}
			free(t, blocks...)
		}
	}}
}

// golden runs Golden with a file in a recorded test.
func (s steps) golden(file string, sizes ...int64) *recorder {
	r, _ := record("TestStep/of 2+1", func(t testing.TB) { memtest.Golden(t, s.cache, file, s.run(t, sizes...)) })
	return r
}

const command = `go test -run '^TestStep$/^of 2\+1$' -memtest.update`

func TestGolden(t *testing.T) {
	s := newSteps(t)
	file := filepath.Join(t.TempDir(), "new", "step.memory")
	r := s.golden(file, 1000, 3000)
	require.Equal(t, fmt.Sprintf("memtest: there is no %s yet: %s writes it\n", file, command), r.text.String())
	t.Run("update", func(t *testing.T) {
		set(t, "memtest.update")
		require.False(t, s.golden(file, 1000, 3000).failed)
	})
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, `# Device memory at the peak, as requested. go test -memtest.update writes this file.
  # bytes  blocks  category         module
     4000       2  all              -
     1000       1  activation       a
     3000       1  activation       b
`, string(text))
	require.False(t, s.golden(file, 1000, 3000).failed)
	require.NoError(t, os.WriteFile(file, []byte(strings.ReplaceAll(string(text), "\n", "\r\n")), 0o600))
	require.False(t, s.golden(file, 1000, 3000).failed, "a file of Windows")

	require.Regexp(t, `^memtest: the peak is 6.84 KiB, 7000 bytes: \+3000 from .*step.memory
  before   now  difference  blocks  category         module
       0  4000       \+4000      \+1  activation       c
    1000     0       -1000      -1  activation       a
lines in the modules that grew:
  bytes  blocks  line
   4000       1  setup_test.go:\d+ \(memtest_test.alloc\)
if this is intended: go test -run .*\n$`, s.golden(file, 0, 3000, 4000).text.String())
	shrank := s.golden(file, 1000).text.String()
	require.Contains(t, shrank, "-3000 from")
	require.NotContains(t, shrank, "lines in the modules that grew")
}

// TestGoldenBlocks: more blocks with the same bytes are a difference.
func TestGoldenBlocks(t *testing.T) {
	cache, s := open(t)
	file := filepath.Join(t.TempDir(), "step.memory")
	require.NoError(t, os.WriteFile(file, []byte("1024 1  all  -\n1024 1  other  -\n"), 0o600))
	r, _ := record("TestStep", func(t testing.TB) {
		memtest.Golden(t, cache, file, func() {
			free(t, alloc(t, cache, s, memcache.CategoryOther, "", 512), alloc(t, cache, s, memcache.CategoryOther, "", 512))
		})
	})
	require.Contains(t, r.text.String(), "1024  1024          +0      +1  other            -\nlines in the modules")
}

// TestGoldenOfNothing: a function that allocates nothing has a file, too.
func TestGoldenOfNothing(t *testing.T) {
	s := newSteps(t)
	file := filepath.Join(t.TempDir(), "step.memory")
	t.Run("update", func(t *testing.T) {
		set(t, "memtest.update")
		require.False(t, s.golden(file).failed)
	})
	require.False(t, s.golden(file).failed)
	require.Contains(t, s.golden(file, 1).text.String(), "+1 from")
}

// TestGoldenNames: names of modules may be any text.
func TestGoldenNames(t *testing.T) {
	cache, s := open(t)
	names := []string{"", "-", "block.0 (Linear)", "two  blanks", " blank", "tab\there", "line\nbreak", "\"quoted\"", "“é”", "\xff", "# no comment", strings.Repeat("x", 1000)}
	file := filepath.Join(t.TempDir(), "step.memory")
	step := func(t testing.TB) {
		memtest.Golden(t, cache, file, func() {
			for i, name := range names {
				b := alloc(t, cache, s, memcache.CategoryOther, name, int64(1+512*i))
				defer free(t, b)
			}
		})
	}
	t.Run("update", func(t *testing.T) {
		set(t, "memtest.update")
		step(t)
	})
	step(t)
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, 3+len(names), strings.Count(string(text), "\n"), "a line for each, and none is another's")
}

// TestTwoGoldens: a test may compare several files, on one cache.
func TestTwoGoldens(t *testing.T) {
	s, dir := newSteps(t), t.TempDir()
	both := func(t testing.TB) {
		memtest.Golden(t, s.cache, filepath.Join(dir, "one"), s.run(t, 1000))
		memtest.Golden(t, s.cache, filepath.Join(dir, "two"), s.run(t, 0, 512))
	}
	t.Run("update", func(t *testing.T) {
		set(t, "memtest.update")
		both(t)
	})
	both(t)
	both(t)
}

func TestDamagedFile(t *testing.T) {
	s := newSteps(t)
	for text, want := range map[string]string{
		"":                                            "its lines do not add up to the line of all",
		"1024 1  activation  a\n":                     "its lines do not add up",
		"512 1  all  -\n1024 1  activation  a\n":      "its lines do not add up",
		"<<<<<<< HEAD\n":                              `line 1 is not bytes, blocks, a category and a module: "<<<<<<< HEAD"`,
		"\n# x\n1024 1  all\n":                        "line 3 is not bytes",
		"-1 1  all  -\n":                              "line 1 is not bytes",
		"99999999999999999999 1  all  -\n":            "line 1: strconv.ParseInt",
		"1 99999999999999999999  all  -\n":            "line 1: strconv.Atoi",
		"1 1  all  -\n1 1  all  -\n":                  "line 2: all of - appears twice",
		"1 1  all  -\n1 1  input  x\n1 1  input  x\n": "line 3: input of x appears twice",
	} {
		file := filepath.Join(t.TempDir(), "step.memory")
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		got := s.golden(file, 1000).text.String()
		require.Contains(t, got, "memtest: "+file+": "+want, text)
		require.Contains(t, got, command+" writes it again", text)
	}
	require.Contains(t, s.golden(t.TempDir(), 1000).text.String(), " writes it again", "a folder")
}

// TestUpdate: a failed test writes nothing, and a write error is a failure.
func TestUpdate(t *testing.T) {
	s := newSteps(t)
	set(t, "memtest.update")
	file := filepath.Join(t.TempDir(), "step.memory")
	for _, fail := range []func(t testing.TB){func(t testing.TB) { t.Errorf("mine") }, func(t testing.TB) { t.Fatal("mine") }} {
		r, _ := record("TestStep", func(t testing.TB) { memtest.Golden(t, s.cache, file, func() { fail(t) }) })
		require.Equal(t, "mine\n", r.text.String())
		require.NoFileExists(t, file)
	}
	require.False(t, s.golden(file, 1).failed)
	require.Contains(t, s.golden(filepath.Join(file, "below"), 1).text.String(), "memtest: ")
	require.Contains(t, s.golden(t.TempDir(), 1).text.String(), "memtest: ")
}

// TestUpdateOfThePackage: a flag -update of the package's tests also writes, and failures name it.
func TestUpdateOfThePackage(t *testing.T) {
	all := flag.CommandLine
	defer func() { flag.CommandLine = all }()
	flag.CommandLine = flag.NewFlagSet("", flag.ContinueOnError)
	own := flag.Bool("update", false, "")
	s := newSteps(t)
	file := filepath.Join(t.TempDir(), "step.memory")
	require.Contains(t, s.golden(file, 1).text.String(), "+1$' -update writes it")
	*own = true
	require.False(t, s.golden(file, 1).failed)
	*own = false
	require.False(t, s.golden(file, 1).failed)
}

// TestLargeFailure: the failure of a model with many modules is readable.
func TestLargeFailure(t *testing.T) {
	cache, s := open(t)
	file := filepath.Join(t.TempDir(), "step.memory")
	require.NoError(t, os.WriteFile(file, []byte("0 0  all  -\n"), 0o600))
	r, _ := record("TestStep", func(t testing.TB) {
		memtest.Golden(t, cache, file, func() {
			for i := range 100 {
				b := alloc(t, cache, s, memcache.CategoryOther, fmt.Sprintf("%03d", i), int64(512*(1+i)))
				defer free(t, b)
			}
		})
	})
	require.Contains(t, r.text.String(), "other            070\n  and 70 smaller ones\n")
	require.NotContains(t, r.text.String(), "other            069")
}
