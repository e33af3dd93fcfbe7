package replay

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/accounting"
	"github.com/cistern-ml/cistern/internal/budget"
	"github.com/cistern-ml/cistern/memcache"
)

// TestBlockOfUnknownRequest: PyTorch 1.13 records no request for a block that was allocated before
// the history began. It counts with its size, while its neighbour is freed and allocated.
func TestBlockOfUnknownRequest(t *testing.T) {
	p := limited(t, `{"segments":[{"address":4194304,"total_size":2097152,"stream":0,"segment_type":"small","blocks":[
{"size":512,"requested_size":100,"state":"active_allocated"},{"size":1024,"state":"active_allocated"},{"size":2095616,"state":"inactive"}]}],
"device_traces":[[{"action":"alloc","addr":4194304,"size":100,"stream":0,"time_us":1}]]}`, budget.Limits{})
	faults := accounting.Faults()
	v, err := Verify(p)
	require.NoError(t, err)
	require.Zero(t, v.Mismatches())
	s, err := NewScenario(p)
	require.NoError(t, err)
	e, err := s.Estimate(memcache.Config{Exact: true})
	require.NoError(t, err)
	require.EqualValues(t, 1536, e.PeakAllocated)
	require.Equal(t, faults, accounting.Faults())
}

// TestRequestAboveItsSegment: a file whose block is larger than the memory that it lies in is a
// contradiction, instead of figures that overflow.
func TestRequestAboveItsSegment(t *testing.T) {
	p := limited(t, `{"segments":[{"address":4194304,"total_size":2097152,"stream":0,"segment_type":"small","blocks":[
{"size":2097152,"requested_size":9223372036854775807,"state":"active_allocated"}]}],
"device_traces":[[{"action":"oom","device_free":0,"size":4096,"stream":0,"time_us":1}]]}`, budget.Limits{})
	require.Contains(t, p.Contradiction, "request of 9223372036854775807 bytes; its segment has 2097152")
}
