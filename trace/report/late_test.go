package report

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestBlocksBeforeTheRecording: all blocks that existed before are counted, freed in the recording
// or held to its end.
func TestBlocksBeforeTheRecording(t *testing.T) {
	const at = int64(0x7f0000000000)
	header := fmt.Sprintf(`{"torch":"2.11.0","conf":"","segments":[{"address":%d,"total_size":83886080,"stream":0,"blocks":[`+
		`[%d,20971520,20971520,"active_allocated"],[%d,20971520,20971520,"active_allocated"],[%d,41943040,0,"inactive"]]}]}`+"\n", at, at, at+20971520, at+41943040)
	freed := fmt.Sprintf("[\"free_requested\",%d,20971520,0]\n[\"free_completed\",%d,20971520,0]\n", at+41943040, at+41943040)
	other := fmt.Sprintf("[\"alloc\",%d,1048576,0]\n[\"free_requested\",%d,1048576,0]\n[\"free_completed\",%d,1048576,0]\n", at+62914560, at+62914560, at+62914560)
	for text, want := range map[string]int{header + freed + other: 3, header + other: 2} {
		reports, err := Read(strings.NewReader(text), "run", Options{})
		require.NoError(t, err)
		require.Contains(t, reports[0].account.notes, countBlocks(want)+" allocated before the recording began: shown as held from its start")
	}
}

// TestWhatIfOfALateSnapshot: the page states what the figures under other options assume.
func TestWhatIfOfALateSnapshot(t *testing.T) {
	f, err := os.Open("../../internal/replay/testdata/late/cnn.late.pickle.gz")
	require.NoError(t, err)
	defer f.Close()
	reports, err := Read(f, "cnn", Options{WhatIf: []string{"", "expandable_segments:True"}})
	require.NoError(t, err)
	r := reports[0]
	notes := strings.Join(r.account.notes, "\n")
	require.Equal(t, 1, strings.Count(notes, "the recording began late: 39 blocks in 22 segments (1100.0 MiB) existed before"))
	require.Equal(t, 1, strings.Count(notes, "free memory at the start is unknown under other options"))
	require.Len(t, r.whatIf, 2)
	require.EqualValues(t, 1153433600, r.whatIf[0].Reserved, "as PyTorch measured")
	require.EqualValues(t, 507510784, r.whatIf[1].Reserved, "as PyTorch measured")
}
