package leaktest_test

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/child"
	"github.com/cistern-ml/cistern/transfer"
)

// kept is a leaked value, safe from the garbage collector.
var kept any

var leftToMain = map[string]func(t *testing.T){
	"file": func(t *testing.T) {
		kept = must(os.Open("planted_test.go"))
	},
	"goroutine": func(t *testing.T) {
		go func() { select {} }()
	},
	"pinned": func(t *testing.T) {
		dev := must(host.New(host.Config{}))
		kept = must(must(transfer.New(dev, transfer.Config{})).Get(t.Context(), 64))
		require.Error(t, dev.Close())
	},
	"nothing": func(t *testing.T) {
		dev := must(host.New(host.Config{}))
		require.NoError(t, dev.Close())
	},
}

// TestLeaveToMain runs one of them in a process of its own.
func TestLeaveToMain(t *testing.T) {
	what, _ := child.Mistake(t)
	leftToMain[what](t)
}

// TestMainFindsWhatIsLeft: a process fails if its tests passed but left something open.
func TestMainFindsWhatIsLeft(t *testing.T) {
	here := func() string {
		_, file, _, _ := runtime.Caller(0)
		return filepath.Dir(file)
	}()
	for what, report := range map[string]string{
		"file":      "file " + filepath.Join(here, "planted_test.go") + " was left open",
		"goroutine": filepath.Join(here, "main_test.go") + ":",
		"pinned":    "pinned memory of the host device was left open; it was opened at " + filepath.Join(here, "../../../../transfer"),
		"nothing":   "",
	} {
		t.Run(what, func(t *testing.T) {
			if what == "file" && runtime.GOOS != "linux" {
				t.Skip("open files are counted on Linux")
			}
			if what == "pinned" {
				needsLedgers(t)
			}
			out, err := child.Test("^TestLeaveToMain$", "CISTERN_TEST_MISTAKE="+what)
			require.Contains(t, out, "--- PASS: TestLeaveToMain")
			require.Equal(t, what == "nothing", err == nil, "%s", out)
			require.Contains(t, out, report)
		})
	}
}
