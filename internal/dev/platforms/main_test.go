package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCheck: faults in a platform's own files and tests are found, and constants that 32 bits
// cannot hold.
func TestCheck(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	write("go.mod", "module example.com/m\n\ngo 1.26\n")
	write("a.go", "package m\n\nimport \"strings\"\n\nfunc F() string { return strings.Repeat(\"a\", G()) }\n")
	write("a_linux.go", "package m\n\nfunc G() int { return 1 }\n")
	write("a_windows.go", "package m\n\nfunc G() int { return 2 }\n")
	write("a_test.go", "package m_test\n\nimport \"example.com/m\"\n\nvar _ = m.F()\n")
	require.NoError(t, check(t.Context(), dir, "windows/amd64"))
	require.ErrorContains(t, check(t.Context(), dir, "darwin/arm64"), "undefined: G")
	write("big.go", "package m\n\nvar H = int(1 << 40)\n")
	write("b_windows_test.go", "package m\n\nfunc g() { missing() }\n")
	require.NoError(t, check(t.Context(), dir, "linux/arm64"))
	require.ErrorContains(t, check(t.Context(), dir, "linux/386"), "overflows int")
	require.ErrorContains(t, check(t.Context(), dir, "windows/amd64"), "undefined: missing")
	for _, wrong := range []string{"linux", "linux/none"} {
		require.ErrorContains(t, check(t.Context(), dir, wrong), "want a system and an architecture")
	}
}
