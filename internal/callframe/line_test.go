package callframe

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLine(t *testing.T) {
	var pcs [64]uintptr
	n := called(pcs[:])
	f := Line(pcs[:n])
	require.Equal(t, module+"internal/callframe.inlined", f.Function)
	require.True(t, strings.HasSuffix(f.File, "callframe_test.go"), f.File)
	require.Equal(t, Unknown, Line(nil).Function)
}

func TestPlace(t *testing.T) {
	require.Equal(t, "model.go:31 (main.(*net).Forward)", Place("main.(*net).Forward", "/home/me/model.go", 31))
	require.Equal(t, "a.go:1 (net.F[...])", Place("example.com/x/net.F[...]", "a.go", 1))
	require.Equal(t, Unknown, Place(Unknown, "", 0))
}
