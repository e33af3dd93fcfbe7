package trace

import (
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/cistern-ml/cistern/memcache"
)

// StepProfile is the memory use of one training step. Sizes are bytes. The figures are those of the
// whole cache while the step was open, including other steps and goroutines. Figures named Own are
// of the blocks that were allocated with the step's context. Figures of copies are of the copies
// that were made for the step.
type StepProfile struct {
	Step  int64     `json:"step"`  // the caller's number
	Start time.Time `json:"start"` // on the host

	// TraceID is the trace of the step's span in hex digits; "" if the span is not sampled. Ranks
	// share it with an [IDGenerator].
	TraceID string `json:"trace_id,omitempty"`

	// Rank and WorldSize are those of the profiler's communicator, or else of its tracer; 0 of 0:
	// there are no ranks.
	Rank      int `json:"rank"`
	WorldSize int `json:"world_size"`

	Failed bool `json:"failed"` // the step's Fail was called, or it panicked

	AllocatedStart int64 `json:"allocated_start"` // handed out when the step started
	AllocatedEnd   int64 `json:"allocated_end"`   // and when it ended
	// AllocatedPeak is the most in between, without the memory of graphs: see GraphBytes.
	AllocatedPeak int64 `json:"allocated_peak"`
	RequestedPeak int64 `json:"requested_peak"` // the most that was asked for, before rounding
	Reserved      int64 `json:"reserved"`       // held from the driver when the step ended
	ReservedPeak  int64 `json:"reserved_peak"`  // the most in between

	// GraphBytes is the memory that graphs hold when the step ends (memcache.Stats.GraphBytes). It
	// is reserved and free in the figures above, although replays use it. The allocated figures
	// include the blocks that captures left allocated, such as a loss, but no other memory of a
	// replay. Unless blocks of graphs' pools are allocated or freed in the step, AllocatedPeak plus
	// GraphBytes is the most memory that is allocated or held by graphs at once.
	GraphBytes int64 `json:"graph_bytes"`

	Allocations int64 `json:"allocations"` // blocks handed out
	Frees       int64 `json:"frees"`       // blocks freed
	Hits        int64 `json:"hits"`        // requests served by the cache
	Misses      int64 `json:"misses"`      // requests that needed the driver, or failed
	// DriverAllocs are the driver allocations that succeeded, as memcache.Stats.NumDeviceAlloc.
	DriverAllocs int64 `json:"driver_allocs"`
	// Retries are the driver allocations repeated after a flush, also those that failed again.
	Retries     int64 `json:"retries"`
	OutOfMemory int64 `json:"out_of_memory"` // requests that failed

	OwnPeak        int64 `json:"own_peak"`        // the most in the step's own blocks
	OwnLive        int64 `json:"own_live"`        // own blocks not freed when the step ended
	OwnAllocations int64 `json:"own_allocations"` // own blocks handed out

	// H2DBytes and D2HBytes were copied to the device and to the host for the step. Copies with the
	// step's context count when they are queued. The batches that the step took from a loader count
	// whenever they were uploaded.
	H2DBytes int64 `json:"h2d_bytes"`
	D2HBytes int64 `json:"d2h_bytes"`

	HostTime time.Duration `json:"host_time_ns"` // from StartStep to End
	// DeviceTime is the time on the compute stream from the end of the work that was queued before
	// the step to the end of the work that the step queued. It is valid if DeviceTimed is set,
	// which happens when the device has finished the step.
	DeviceTime  time.Duration `json:"device_time_ns"`
	DeviceTimed bool          `json:"device_timed"`
	// BusyTime is the part of DeviceTime in which the stream had work; in the rest it waited for
	// the host, or for another stream. It is valid if BusyTimed is set. Some devices can't measure
	// it (device.BusyTimer). There a KernelTimer can, and BusyTime is the time of the kernels.
	BusyTime  time.Duration `json:"busy_time_ns"`
	BusyTimed bool          `json:"busy_timed"`

	// Peak has the holders of the memory at the peak, if ProfilerConfig.Holders is set, and for
	// steps of the table; else nil. With a Stream it is set when the step is complete.
	Peak *StepPeak `json:"peak,omitempty"`

	// Communicator identifies the communicator: a hash of its id, the same on all ranks; "": there
	// is none.
	Communicator string `json:"communicator,omitempty"`
	// Collectives are the operations of ProfilerConfig.Communicator in the step, in order, when the
	// step is complete. They don't include those of graphs.
	Collectives []StepCollective `json:"collectives,omitempty"`
	// CollectiveTime is the sum of their times. They overlap the step's other work, so it is no
	// part of DeviceTime alone.
	CollectiveTime time.Duration `json:"collective_time_ns,omitempty"`

	// ReplayedCollectives are the operations of ProfilerConfig.Communicator in the graphs that were
	// replayed in the step, by kind. Their times are not measured, and CollectiveTime does not
	// include them.
	ReplayedCollectives []ReplayedCollective `json:"replayed_collectives,omitempty"`

	// Replays are the graphs that were replayed with the step's context. A replay allocates
	// nothing. Of the memory of a graph, the allocated figures above include the blocks that its
	// capture left allocated, and GraphBytes includes the rest.
	Replays []StepReplay `json:"replays,omitempty"`
}

// HitRate returns the share of requests that the cache served, from 0 to 1; 0 if there were none.
func (p StepProfile) HitRate() float64 { return rate(float64(p.Hits), float64(p.Misses)) }

func rate(hits, misses float64) float64 {
	if hits+misses == 0 {
		return 0
	}
	return hits / (hits + misses)
}

// duration returns the longer of the step's times on the host and on the device.
func (p *StepProfile) duration() time.Duration { return max(p.HostTime, p.DeviceTime) }

// attributes adds the attributes of the step's span, except the device time.
func (p *StepProfile) attributes(a []attribute.KeyValue) []attribute.KeyValue {
	a = p.replayAttributes(a)
	a = p.collectiveAttributes(a)
	if len(p.Collectives) > 0 {
		a = append(a, KeyStepCollectives.Int(len(p.Collectives)), KeyStepCollectiveTime.Float64(p.CollectiveTime.Seconds()))
	}
	return append(a,
		KeyStepStart.Int64(p.AllocatedStart),
		KeyStepEnd.Int64(p.AllocatedEnd),
		KeyStepPeak.Int64(p.AllocatedPeak),
		KeyStepRequested.Int64(p.RequestedPeak),
		KeyStepReserved.Int64(p.ReservedPeak),
		KeyStepAllocations.Int64(p.Allocations),
		KeyStepHits.Int64(p.Hits),
		KeyStepMisses.Int64(p.Misses),
		KeyStepRetries.Int64(p.Retries),
		KeyStepOOMs.Int64(p.OutOfMemory),
		KeyStepOwnPeak.Int64(p.OwnPeak),
		KeyStepOwnLive.Int64(p.OwnLive),
		KeyStepOwnAllocations.Int64(p.OwnAllocations),
		KeyStepH2D.Int64(p.H2DBytes),
		KeyStepD2H.Int64(p.D2HBytes),
	)
}

// StepPeak has the holders of the memory at the peak of a step, in bytes. Each list adds up to the
// peak, the largest holder first.
type StepPeak struct {
	Categories []memcache.Share `json:"categories"`
	Modules    []memcache.Share `json:"modules"` // by memcache.Label.Module, "" for none
	Graphs     int64            `json:"graphs"`  // bytes that graphs held in addition
	// Free is the bytes that the cache held from the driver in addition, for any request.
	Free int64 `json:"free"`
}

// StepCollective is an operation of a step's communicator, or a group as one operation.
type StepCollective struct {
	// Number counts the calls that all ranks of the communicator make, from 1 on: it is that of the
	// operation's first such call, and the same on every rank. 0: sends and receives.
	Number    int64  `json:"number"`
	Operation string `json:"operation"` // "all_reduce", "group"
	Bytes     int64  `json:"bytes"`     // as NCCL's tests count them
	// Time is the device's, from when the stream reaches the operation until this rank has finished
	// it, including the wait for other ranks.
	Time time.Duration `json:"time_ns"`
}

// ReplayedCollective counts the operations of one kind in the graphs of a step's replays. They have
// no times, because a graph is one launch.
type ReplayedCollective struct {
	Operation string `json:"operation"` // as in [StepCollective]
	Count     int64  `json:"count"`     // operations, a group as one, over all replays
	Bytes     int64  `json:"bytes"`     // of all of them together, as NCCL's tests count them
}

// StepReplay is the memory of a graph that was replayed in a step, as it was when the graph was
// captured. Sizes are bytes.
type StepReplay struct {
	Graph uint64 `json:"graph"` // its number among the captures of the cache
	Count int64  `json:"count"` // replays in the step
	// Held is the most that the graph's operations hold at once, including blocks that are still
	// allocated.
	Held        int64 `json:"held"`
	Allocations int64 `json:"allocations"` // blocks that they use

	Pool         memcache.PoolID `json:"pool"`          // the graph's private pool
	PoolGraphs   int64           `json:"pool_graphs"`   // the number of graphs that share it
	PoolReserved int64           `json:"pool_reserved"` // its segments

	// Each list adds up to Held, the largest first. They are set where Peak is, and in
	// Summary.LastReplayed.
	Categories []memcache.Share `json:"categories,omitempty"`
	Modules    []memcache.Share `json:"modules,omitempty"` // by memcache.Label.Module

	memory *memcache.GraphMemory
}
