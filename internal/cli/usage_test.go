package cli

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// subcommands are those that users call.
var subcommands = []string{"verify", "whatif", "report", "ranks", "diff"}

// TestHelp: the help fits a screen, and the help of each subcommand begins with an example that its
// parser accepts.
func TestHelp(t *testing.T) {
	status, stdout, stderr := runs(t, "--help")
	require.Equal(t, exitOK, status)
	require.Empty(t, stderr)
	lines := strings.Split(strings.TrimSpace(stdout), "\n")
	require.LessOrEqual(t, len(lines), 24, stdout)
	for _, c := range subcommands {
		require.Regexp(t, `(?m)^  `+c+` `, stdout)
		status, help, stderr := runs(t, c, "--help")
		require.Equal(t, exitOK, status)
		require.Empty(t, stderr)
		require.LessOrEqual(t, strings.Count(help, "\n"), 40, help)
		example, ok := strings.CutPrefix(strings.SplitN(help, "\n", 2)[0], "Example: cistern ")
		require.True(t, ok, help)
		args := strings.Fields(example)
		require.Equal(t, c, args[0])
		t.Chdir(t.TempDir()) // which has no such file
		status, _, stderr = runs(t, args...)
		require.Equal(t, exitFailed, status)
		require.Contains(t, stderr, "no such file")
	}
	for _, line := range lines {
		require.LessOrEqual(t, len(line), 100)
	}
}

// TestUsage: a wrong command line prints the fault and a hint to the help, and nothing on the
// standard output.
func TestUsage(t *testing.T) {
	for want, args := range map[string][]string{
		`expected one of "verify"`:      {},
		`unexpected argument nonsense`:  {"nonsense"},
		`unknown flag --unknown`:        {"verify", "--unknown", "x"},
		`expected "<file> ..."`:         {"verify", "--json"},
		`expected "<file>"`:             {"report"},
		`missing "expandable_segments"`: {"whatif", "x", "-c"},
		`Maybe`:                         {"whatif", "-c", "expandable_segments:Maybe", "x"},
		`not a size; want bytes`:        {"verify", "--max-memory", "much", "x"},
		`max-work is -1`:                {"verify", "--max-work=-1", "x"},
		`exclude each other`:            {"report", "-c", "", "--no-whatif", "x"},
		`both go to`:                    {"ranks", "--json", "-o", "-", "x"},
		`/dev/stdout both go to`:        {"ranks", "--json", "-o", "/dev/stdout", "x"},
		`expected "<after>"`:            {"diff", "x"},
		`--output - both go`:            {"diff", "--json", "-o", "-", "x", "y"},
		`both files are the standard`:   {"diff", "-", "-"},
		`max_split`:                     {"report", "-c", "max_split:1", "x"},
	} {
		status, stdout, stderr := runs(t, args...)
		require.Equal(t, exitFailed, status, args)
		require.Empty(t, stdout, args)
		require.True(t, strings.HasPrefix(stderr, "cistern: "), stderr)
		require.Contains(t, stderr, `Run "cistern --help" for usage.`, args)
		require.Equal(t, 1, strings.Count(stderr, "\n"), stderr)
		if !strings.HasPrefix(want, "missing") {
			require.Contains(t, stderr, want, args)
		}
	}
}

// TestCommandsOfPages runs the lines about the command in README.md and docs/guide/snapshots.md, on
// files of the names that they use.
func TestCommandsOfPages(t *testing.T) {
	var lines [][]string
	for page, want := range map[string]int{"README.md": 4, "docs/guide/snapshots.md": 7} {
		text, err := os.ReadFile("../../" + page)
		require.NoError(t, err)
		found := regexp.MustCompile(`(?m)^(?:go run github\.com/cistern-ml/cistern@latest|cistern) (.*)$`).FindAllStringSubmatch(string(text), -1)
		require.Len(t, found, want, page)
		lines = append(lines, found...)
	}
	recorded, err := os.ReadFile(testdata + "mnist_mlp.jsonl.gz")
	require.NoError(t, err)
	t.Chdir(t.TempDir())
	for _, name := range []string{"snapshot.pickle", "before.pickle", "after.pickle"} {
		require.NoError(t, os.WriteFile(name, recorded, 0o600))
	}
	for _, rank := range []string{"0", "1"} {
		profile := `{"step":1,"rank":` + rank + `,"world_size":2,"collectives":[{"number":1,"time_ns":5000000}]}` + "\n"
		require.NoError(t, os.WriteFile("rank"+rank+".jsonl", []byte(profile), 0o600))
	}
	for _, line := range lines {
		command, _, _ := strings.Cut(line[1], "#")
		args := strings.Fields(command)
		in := strings.NewReader("")
		if k := len(args) - 1; args[k-1] == "<" {
			in, args = strings.NewReader(string(recorded)), args[:k-1]
		}
		var out, errs strings.Builder
		require.Equal(t, exitOK, Run(args, in, &out, &errs), "%s: %s", line[0], errs.String())
	}
	pages, err := filepath.Glob("*.html")
	require.NoError(t, err)
	require.NotEmpty(t, pages)
}
