package ranks

import (
	"encoding/json"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzRead: two files don't panic, and allocate no more than a multiple of their bytes, garbage
// included.
func FuzzRead(f *testing.F) {
	const zero = `{"step":1,"trace_id":"4bf92f3577b34da6a3ce929d0e0e4736","rank":0,"world_size":2,"communicator":"c","allocated_peak":7,"peak":{"categories":[{"name":"gradient","bytes":5}]},` +
		`"collectives":[{"number":1,"time_ns":5},{"number":2,"time_ns":5}],"replayed_collectives":[{"count":2,"bytes":3}],"replays":[{"count":1}]}` + "\n"
	const one = `{"step":1,"rank":1,"world_size":2,"communicator":"c","failed":true,"collectives":[{"number":1,"time_ns":3},{"number":2,"time_ns":9}]}` + "\n"
	f.Add(zero, one)
	f.Add(zero+one, one+zero)
	f.Add(zero[:len(zero)-9], "\n\n"+one)
	f.Add(`{"world_size":4096}`, `{"rank":4095,"world_size":4096,"collectives":[{},{},{},0,0,null]}`)
	f.Add(`{"world_size":1,"collectives":[{"number":1},{"number":1}]}`, `{"step":"\u00e4\xff`)
	f.Fuzz(func(t *testing.T, a, b string) {
		var r *Report
		var err error
		n := allocated(func() { r, err = Read(Options{}, File{"a", strings.NewReader(a)}, File{"b", strings.NewReader(b)}) })
		require.Less(t, n, int64(8<<20+200*(len(a)+len(b))))
		if err != nil {
			require.Less(t, len(err.Error()), 1000)
			return
		}
		_, err = json.Marshal(r)
		require.NoError(t, err)
		require.NoError(t, r.Table(io.Discard))
		if r.WorldSize <= 16 {
			require.NoError(t, r.HTML(io.Discard, "t"))
		}
	})
}
