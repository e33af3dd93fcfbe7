package replay

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// BenchmarkReplay replays whole recordings; ns/call is the time of one call of their programs.
func BenchmarkReplay(b *testing.B) {
	for _, file := range recordings(b) {
		b.Run(strings.TrimSuffix(filepath.Base(file), ".jsonl.gz"), func(b *testing.B) {
			p := program(b, file)
			s, err := NewScenario(p)
			require.NoError(b, err)
			config, err := Config(p)
			require.NoError(b, err)
			b.ReportAllocs()
			var calls, spent int64
			for b.Loop() {
				e, err := s.Estimate(config)
				if err != nil {
					b.Fatal(err)
				}
				calls += int64(e.Calls)
				spent += e.Elapsed.Nanoseconds()
			}
			b.ReportMetric(float64(spent)/float64(calls), "ns/call")
		})
	}
}
