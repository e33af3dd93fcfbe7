package audit

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTestingPage: docs/testing.md names each artefact that the earlier tests compared, and only
// existing tests.
func TestTestingPage(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs/testing.md"))
	require.NoError(t, err)
	_, section, ok := strings.Cut(string(text), "## Audits\n")
	require.True(t, ok)
	section, _, _ = strings.Cut(section, "\n## ")
	for artefact := range shown {
		require.Contains(t, section, "`"+artefact+"`", "an artefact that docs/testing.md does not list")
	}
	tests := map[string]bool{}
	require.NoError(t, filepath.WalkDir(root, func(name string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(name, "_test.go") {
			return err
		}
		text, err := os.ReadFile(name)
		for _, m := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllStringSubmatch(string(text), -1) {
			tests[m[1]] = true
		}
		return err
	}))
	named := regexp.MustCompile("`(Test\\w+)`").FindAllStringSubmatch(section, -1)
	require.NotEmpty(t, named)
	for _, m := range named {
		require.True(t, tests[m[1]], m[1])
	}
}
