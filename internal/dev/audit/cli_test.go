package audit

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/cli"
	"github.com/cistern-ml/cistern/memcache"
)

// checkCommands compares the output of the command cistern for a recording of the program with the books.
func (w *world) checkCommands(recorded []byte) {
	file := filepath.Join(w.t.TempDir(), "recording.jsonl")
	require.NoError(w.t, os.WriteFile(file, recorded, 0o600))
	run := func(args ...string) string {
		var out, errs bytes.Buffer
		require.Zero(w.t, cli.Run(append(args, file), nil, &out, &errs), "%v: %s", w, errs.String())
		return out.String()
	}
	peak, reserved, allocs := int64(0), int64(0), 0
	blocks, segments, _, n := w.books.lives()
	for m := range n {
		peak, reserved = max(peak, sumAt(blocks, m, blockBytes)), max(reserved, sumAt(segments, m, segmentBytes))
	}
	for _, e := range w.books.events {
		if e.Action == memcache.ActionAlloc {
			allocs++
		}
	}
	c := w.books.counts
	ratio := 0.0
	if peak > 0 {
		ratio = float64(reserved) / float64(peak)
	}
	ooms, retries := c["NumOOMs"], c["NumAllocRetries"]
	whatIf := figures{"allocs": allocs + int(ooms), "peak_allocated": peak, "peak_reserved": reserved, "retries": retries, "ooms": ooms,
		"driver_calls": c["NumDeviceAlloc"] + c["NumDeviceFree"], "ratio": between{ratio - 1e-9, ratio + 1e-9}}
	// A verification has the statistics at the end, as the program has reset them, and a note about
	// that.
	end := w.books.stats(w.books.reset)
	verify := figures{"allocs": allocs + int(ooms), "address_mismatches": 0, "call_mismatches": 0, "stat_mismatches": 0, "block_mismatches": 0,
		"peak_allocated": end["AllocatedBytes.All.Peak"], "peak_reserved": end["ReservedBytes.All.Peak"], "retries": end["NumAllocRetries"], "ooms": end["NumOOMs"]}
	for _, command := range []struct {
		name string
		args []string
		want figures
	}{{"cistern whatif", []string{"whatif", "-c", "recorded", "--json"}, whatIf}, {"cistern verify", []string{"verify", "--json"}, verify}} {
		got := fromJSON(w.t, []byte(run(command.args...)))
		require.Contains(w.t, fmt.Sprint(got["trace"]), "recording.jsonl")
		notes := []any{}
		for name := range got {
			if strings.HasPrefix(name, "notes[") {
				notes = append(notes, got[name])
			}
			if name == "trace" || name == "config" || name == "ns_per_op" || strings.HasPrefix(name, "notes[") {
				delete(got, name)
			}
		}
		if command.name == "cistern whatif" && w.private > 0 { // an estimate, which says so
			require.Contains(w.t, notes, "requests of private pools are replayed in the default pool")
			continue
		}
		reset := "the program reset its statistics: peaks, retries and requests out of memory count from then on"
		require.Equal(w.t, command.name == "cistern verify" && w.resets > 0, slices.Contains(notes, any(reset)), "%v", w)
		require.NotContains(w.t, notes, "requests of private pools are replayed in the default pool")
		requireTrue(w.t, command.name, got, command.want, w)
	}
	mib := func(n int64) string {
		if n < 1<<20 {
			return fmt.Sprintf("%d B", n)
		}
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	row := func(text string) []string {
		cells := wide.Split(strings.TrimSpace(strings.Split(text, "\n")[1]), -1)
		return cells[1 : len(cells)-1] // between the file's name and the time
	}
	if w.private == 0 {
		require.Equal(w.t, []string{"exact:False", mib(peak), mib(reserved), fmt.Sprintf("%.3f", ratio), fmt.Sprint(whatIf["driver_calls"]), fmt.Sprint(retries),
			fmt.Sprint(ooms)}, row(run("whatif", "-c", "recorded")), "%v", w)
	}
	require.Equal(w.t, []string{fmt.Sprint(verify["allocs"]), "0", mib(end["AllocatedBytes.All.Peak"].(int64)), mib(end["ReservedBytes.All.Peak"].(int64)),
		fmt.Sprint(verify["retries"]), fmt.Sprint(verify["ooms"])}, row(run("verify")), "%v", w)
}
