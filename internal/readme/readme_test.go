// Package readme runs the programs in README.md.
package readme

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestProgramsRun(t *testing.T) {
	text, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	programs := regexp.MustCompile("(?s)```go\n(package main.*?)```").FindAllSubmatch(text, -1)
	require.Len(t, programs, 2)
	here, err := os.Getwd()
	require.NoError(t, err)
	for i, p := range programs {
		// The program is built as if it stood in this module.
		dir := t.TempDir()
		file, overlay := filepath.Join(dir, "main.go"), filepath.Join(dir, "overlay.json")
		require.NoError(t, os.WriteFile(file, p[1], 0o600))
		name := fmt.Sprintf("program%d", i)
		replace, err := json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(here, name, "main.go"): file}})
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(overlay, replace, 0o600))
		out, err := exec.Command("go", "run", "-overlay", overlay, "./"+name).CombinedOutput()
		require.NoError(t, err, "%s", out)
		t.Logf("%s", out)
	}
}
