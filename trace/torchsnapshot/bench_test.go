package torchsnapshot

import (
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/memcache"
)

// BenchmarkWrite measures an entry with a call stack, in time and bytes of the file.
func BenchmarkWrite(b *testing.B) {
	p := newProgram(b, "", memcache.StacksAll)
	p.run(2000)
	s := p.state()
	var size countingWriter
	require.NoError(b, Write(&size, s))
	n := float64(len(s.Snapshot.History))
	for b.Loop() {
		require.NoError(b, Write(io.Discard, s))
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/entry")
	b.ReportMetric(float64(size)/n, "B/entry")
}

type countingWriter int64

func (w *countingWriter) Write(p []byte) (int, error) {
	*w += countingWriter(len(p))
	return len(p), nil
}
