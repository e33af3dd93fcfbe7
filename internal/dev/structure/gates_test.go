package structure

import (
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// stage is a line of .ci/stages.
type stage struct{ name, nightly, pattern string }

func stages(t *testing.T) (list []stage) {
	t.Helper()
	text, err := os.ReadFile(root + "/.ci/stages")
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") || strings.TrimSpace(line) == "" {
			continue
		}
		fields := strings.Fields(line)
		require.Len(t, fields, 3, line)
		list = append(list, stage{fields[0], fields[1], fields[2]})
	}
	require.Greater(t, len(list), 20)
	return list
}

// TestStages: each stage is a target of the Makefile, make nightly runs it or one that contains it,
// and its pattern matches a file, so that renaming a folder does not silence a stage.
func TestStages(t *testing.T) {
	makefile, err := os.ReadFile(root + "/Makefile")
	require.NoError(t, err)
	out, err := exec.Command("git", "-C", root, "ls-files").Output()
	if err != nil {
		t.Skipf("no git, or no clone: %v", err)
	}
	files := strings.Split(string(out), "\n")
	list := stages(t)
	parts := map[string]string{}
	for _, s := range list {
		require.Regexp(t, `(?m)^`+regexp.QuoteMeta(s.name)+`:.*##`, string(makefile))
		if other, ok := parts[s.name]; ok {
			require.Equal(t, other, s.nightly, "%s is in two lines", s.name)
		}
		parts[s.name] = s.nightly
	}
	for _, s := range list {
		if by, within := strings.CutPrefix(s.nightly, "within:"); within {
			require.Contains(t, []string{"1", "2", "3", "4"}, parts[by], "%s is contained in %s", s.name, by)
		} else {
			require.Contains(t, []string{"1", "2", "3", "4"}, s.nightly, s.name)
		}
		if !slices.Contains([]string{"code", "rotates", "nightly"}, s.pattern) {
			for i, alternative := range strings.Split(s.pattern, "|^") {
				if i > 0 {
					alternative = "^" + alternative
				}
				require.True(t, slices.ContainsFunc(files, regexp.MustCompile(alternative).MatchString), "%s: no file matches %s", s.name, alternative)
			}
		}
	}
}

// plan returns the stages that .ci/plan chooses for changed paths.
func plan(t *testing.T, count string, paths ...string) (runs []string) {
	t.Helper()
	cmd := exec.Command(root + "/.ci/plan")
	cmd.Env = append(os.Environ(), "COUNT="+count)
	cmd.Stdin = strings.NewReader(strings.Join(paths, "\n") + "\n")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	seen := map[string]bool{}
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		require.GreaterOrEqual(t, len(fields), 3, "a reason: %s", line)
		require.Contains(t, []string{"run", "skip"}, fields[0], line)
		if fields[0] == "run" {
			require.False(t, seen[fields[1]], "%s runs twice", fields[1])
			seen[fields[1]] = true
			runs = append(runs, fields[1])
		}
	}
	return runs
}

func TestPlan(t *testing.T) {
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skip("the gate needs bash")
	}
	always := []string{"test", "fmt", "vet", "lint", "race-short", "invariants-short", "platforms", "cuda"}
	require.Equal(t, []string{"test", "fmt"}, plan(t, "0", "docs/testing.md", "README.md", ".ci/nightly"), "documents")
	require.Equal(t, []string{"test", "fmt"}, plan(t, "0"), "nothing")
	require.Equal(t, append(slices.Clone(always), "full"), plan(t, "0", "memcache/alloc.go")[:len(always)+1])
	ofTransfer := plan(t, "0", "transfer/copy.go")
	for path, want := range map[string]string{
		"tensor/internal/ptx/copy.cu":     "emulate",
		"tensor/internal/ptx/copy.ptx":    "kernels-check",
		"tensor/internal/gemm/gemm.go":    "simd-levels",
		"tensor/internal/simd/x_arm64.s":  "qemu",
		"tensor/internal/avo/main.go":     "generate",
		"device/cuda/shim.c":              "cuda-test",
		"internal/recording/read.go":      "fuzz-changed",
		"autograd/safetensors/read.go":    "fuzz-changed",
		"autograd/torchfile/scan.go":      "fuzz-changed",
		"internal/race/on.go":             "sanitizer",
		"go.sum":                          "vuln",
		".ci/run":                         "scripts",
		"trace/report/page/page.js":       "full",
		"memcache/testdata/scripts/x.txt": "full",
	} {
		require.Subset(t, plan(t, "1", "docs/testing.md", path), append(slices.Clone(always), want), path)
		require.NotContains(t, ofTransfer, map[bool]string{true: "", false: want}[want == "full"], path)
	}
	require.Subset(t, plan(t, "0", "internal/invariants/on.go"), []string{"test", "full", "invariants"})
	require.NotContains(t, plan(t, "0", "internal/invariants/on.go"), "invariants-short")
	everything := plan(t, "0", "everything")
	for _, contained := range []string{"invariants-short", "fuzz-changed"} {
		require.NotContains(t, everything, contained, "invariants and fuzz contain it")
	}
	require.Contains(t, everything, "test")
	require.Contains(t, plan(t, "1", "everything"), "fuzz-changed", "it is not the turn of fuzz")
	var turns []string
	for _, s := range stages(t) {
		if s.pattern == "rotates" {
			turns = append(turns, s.name)
		}
		if whole, _ := strings.CutPrefix(s.nightly, "within:"); s.pattern != "rotates" && s.pattern != "nightly" && !slices.Contains(everything, whole) {
			require.Contains(t, everything, s.name)
		}
	}
	require.Len(t, turns, 8)
	for i, want := range turns {
		got := plan(t, string(rune('0'+i)), "transfer/copy.go")
		require.Equal(t, want, got[len(got)-1], "commit %d", i)
	}
}
