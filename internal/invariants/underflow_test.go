package invariants

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

// TestUnderflow: each one is counted, and the first is logged, by no goroutine of the caller's.
func TestUnderflow(t *testing.T) {
	if Enabled {
		require.PanicsWithValue(t, "a counter fell to -3", func() { Underflow("a counter", -3) })
		return
	}
	before := slog.Default()
	defer slog.SetDefault(before)
	var text bytes.Buffer
	var locked sync.Mutex // of the caller
	synctest.Test(t, func(t *testing.T) {
		logged = sync.Once{}
		slog.SetDefault(slog.New(slog.NewTextHandler(writer(func(p []byte) (int, error) {
			locked.Lock()
			defer locked.Unlock()
			return text.Write(p)
		}), nil)))
		n := Underflows()
		locked.Lock()
		Underflow("a counter", -3)
		Underflow("another", -4)
		locked.Unlock()
		synctest.Wait()
		require.Equal(t, n+2, Underflows())
	})
	require.Equal(t, 1, strings.Count(text.String(), "\n"))
	require.Contains(t, text.String(), `level=ERROR`)
	require.Contains(t, text.String(), `counter="a counter" value=-3`)
}

type writer func([]byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }
