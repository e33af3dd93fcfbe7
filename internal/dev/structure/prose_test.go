package structure

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// banned are phrases that readers had to read twice.
var banned = regexp.MustCompile(`\bwho (waits?|asks?|has|finds?|reads?)\b|\bbut for\b|\bis no error\b|\bnot done with\b|\bbehind it\b|\bto the bit the same\b`)

// widest is the most columns of a comment's line, with 4 for a tab.
const widest = 120

// TestProse: comments outside of tests, and pages, have no banned phrase and no line that is too
// long, except tables and programs' output.
func TestProse(t *testing.T) {
	lines := 0
	sources(t, func(name string, text []byte) {
		if strings.HasSuffix(name, "_test.go") {
			return
		}
		for i, line := range strings.Split(string(text), "\n") {
			if comment := commentOf(line); comment != "" {
				lines++
				for _, problem := range problems(comment, line) {
					t.Errorf("%s:%d: %s", name, i+1, problem)
				}
			}
		}
	})
	require.Greater(t, lines, 10_000)
	for _, page := range pages(t) {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		code := false
		for i, line := range strings.Split(string(text), "\n") {
			code = code != strings.HasPrefix(line, "```")
			if code || strings.HasPrefix(line, "    ") {
				continue
			}
			of := line
			if strings.HasPrefix(line, "|") || strings.HasPrefix(line, "![") || strings.HasPrefix(line, "[") {
				of = "" // of any length
			}
			for _, problem := range problems(line, of) {
				t.Errorf("%s:%d: %s", page, i+1, problem)
			}
		}
	}
}

// pages are README.md, CONTRIBUTING.md and the pages of docs and examples. TestChangelog checks
// CHANGELOG.md.
func pages(t *testing.T) (all []string) {
	for _, pattern := range []string{"README.md", "CONTRIBUTING.md", "docs/*.md", "docs/*/*.md", "examples/*/README.md"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		require.NoError(t, err)
		require.NotEmpty(t, found, pattern)
		all = append(all, found...)
	}
	return all
}

// commentOf is the comment on a line of Go or C, without the code before it.
func commentOf(line string) string {
	at := strings.Index(line, "//")
	if at < 0 || strings.Count(line[:at], `"`)%2 == 1 { // in a string
		return ""
	}
	if at == 0 || strings.ContainsRune(" \t", rune(line[at-1])) {
		return line[at:]
	}
	return ""
}

// problems are those of a comment and of the line that it stands on.
func problems(comment, line string) (all []string) {
	if phrase := banned.FindString(comment); phrase != "" {
		all = append(all, `"`+phrase+`": say it with a noun and a verb`)
	}
	if directive := strings.HasPrefix(comment, "//go:") || strings.HasPrefix(comment, "// Code generated") || strings.Contains(comment, "://"); !directive &&
		utf8.RuneCountInString(strings.ReplaceAll(line, "\t", "    ")) > widest {
		all = append(all, "the line has more than 120 columns")
	}
	return all
}

func TestProseFindsProblems(t *testing.T) {
	long := strings.Repeat("long ", 25)
	for line, want := range map[string]int{
		"x := 1 // nothing but for this": 1, "// what is behind it": 1, "// a request that waits": 0, `f("x // but for y")`: 0, "//go:generate " + long: 0, "\t// " + long: 1,
		`url := "https://example.com/but for"`: 0, "f(x) // " + long: 1, "// see https://example.com/" + long: 0, long + long: 0,
	} {
		found := 0
		if comment := commentOf(line); comment != "" {
			found = len(problems(comment, line))
		}
		require.Equal(t, want, found, line)
	}
}

// TestChangelog: since 0.1.0 an entry is one line of at most 25 words, and breaking changes come
// first.
func TestChangelog(t *testing.T) {
	text, err := os.ReadFile(root + "/CHANGELOG.md")
	require.NoError(t, err)
	recent, _, found := strings.Cut(string(text), "\n## [0.1.0]")
	require.True(t, found)
	_, recent, _ = strings.Cut(recent, "\n## ")
	first := map[string]string{}
	version := ""
	for i, line := range strings.Split("## "+recent, "\n") {
		switch {
		case strings.HasPrefix(line, "## "):
			version = line
		case strings.HasPrefix(line, "### "):
			if first[version] == "" {
				first[version] = line
			} else {
				require.NotEqual(t, "### Breaking", line, "%s: the first part", version)
			}
		case strings.HasPrefix(line, "- "):
			require.LessOrEqual(t, len(strings.Fields(line))-1, 25, line)
		default:
			require.Empty(t, strings.TrimSpace(line), "an entry is one line (line %d after the head)", i)
		}
	}
	require.NotEmpty(t, first)
}
