package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/trace"
)

func init() { device.Register("untimed", untimed{}) }

// untimed opens host devices that don't report busy times.
type untimed struct{}

func (untimed) Open(string, url.Values) (device.Device, error) {
	d, err := host.New(host.Config{})
	return &cisterntest.Untimed{Device: d}, err
}

// TestBusy: with -busy, steps have a busy time on a device that does not report it, also together
// with -memprofile, whose trace has the kernels.
func TestBusy(t *testing.T) {
	for args, busy := range map[string]bool{"": false, "-busy": true, "-busy -memprofile": true} {
		dir := t.TempDir()
		steps := filepath.Join(dir, "steps.jsonl")
		all := append([]string{"-data", dataOf(t, 128, 10), "-batch", "16", "-epochs", "1", "-model", anyModel(), "-device", "untimed", "-steps", steps}, strings.Fields(args)...)
		if strings.HasSuffix(args, "-memprofile") {
			all = append(all, dir)
		}
		var out, errs bytes.Buffer
		require.Equal(t, 0, run(context.Background(), all, &out, &errs), errs.String())
		text, err := os.ReadFile(steps)
		require.NoError(t, err)
		n := 0
		for line := range strings.Lines(string(text)) {
			var p trace.StepProfile
			require.NoError(t, json.Unmarshal([]byte(line), &p))
			require.True(t, p.DeviceTimed)
			require.Equal(t, busy, p.BusyTimed, args)
			require.Equal(t, busy, p.BusyTime > 0)
			require.LessOrEqual(t, p.BusyTime, p.DeviceTime)
			n++
		}
		require.Equal(t, 8, n)
		if strings.HasSuffix(args, "-memprofile") {
			text, err := os.ReadFile(filepath.Join(dir, "trace.json"))
			require.NoError(t, err)
			require.Contains(t, string(text), `"cat":"kernel"`)
		}
	}
}
