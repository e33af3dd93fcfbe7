package output

import (
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestMounted: a file that is a mount point is refused, since it cannot be replaced.
func TestMounted(t *testing.T) {
	t.Chdir(t.TempDir())
	require.NoError(t, os.WriteFile("source", []byte("old"), 0o600))
	require.NoError(t, os.WriteFile("file", nil, 0o600))
	require.NoError(t, Check("file"))
	if err := syscall.Mount("source", "file", "", syscall.MS_BIND, ""); err != nil {
		t.Skip("needs the right to mount: ", err)
	}
	defer func() { require.NoError(t, syscall.Unmount("file", 0)) }()
	for _, err := range []error{Check("file"), Write("file", text("new"))} {
		require.ErrorContains(t, err, "file can't be written: it is a mount point")
	}
	require.Equal(t, "old", contents(t, "source"))
	require.Len(t, names(t, "."), 2)
}
