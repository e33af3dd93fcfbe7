package trace

import (
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/cistern-ml/cistern/memcache"
)

// StepProfile is what one training step did with memory. Sizes are bytes. The figures are those of the whole
// cache while the step was open, whoever caused them; those named Own are of the blocks that were allocated with
// the step's context, and those of copies are of the copies that were made for the step.
type StepProfile struct {
	Step  int64     `json:"step"`  // the caller's number
	Start time.Time `json:"start"` // on the host

	// TraceID is the trace of the step's span, in hex digits, if the span is sampled; else "".
	// Ranks share it with an [IDGenerator].
	TraceID string `json:"trace_id,omitempty"`

	// Rank is that of the profiler's communicator, or else of its tracer, of as many as WorldSize; 0 of 0: there are none.
	Rank      int `json:"rank"`
	WorldSize int `json:"world_size"`

	Failed bool `json:"failed"` // the step's Fail was called, or it panicked

	AllocatedStart int64 `json:"allocated_start"` // handed out when the step started
	AllocatedEnd   int64 `json:"allocated_end"`   // and when it ended
	AllocatedPeak  int64 `json:"allocated_peak"`  // the most in between, without what graphs hold: see GraphBytes
	RequestedPeak  int64 `json:"requested_peak"`  // the most that was asked for, before rounding
	Reserved       int64 `json:"reserved"`        // held from the driver when the step ended
	ReservedPeak   int64 `json:"reserved_peak"`   // the most in between

	// GraphBytes is what graphs hold when the step ends (memcache.Stats.GraphBytes): memory that is
	// reserved and free by the figures above, and that replays use. Allocated figures have the
	// blocks that captures left handed out, such as a loss, and nothing else of what a replay uses.
	// Unless blocks of graphs' pools are allocated or freed in the step, AllocatedPeak and
	// GraphBytes together are the most that is allocated or held by graphs at once.
	GraphBytes int64 `json:"graph_bytes"`

	Allocations  int64 `json:"allocations"`   // blocks handed out
	Frees        int64 `json:"frees"`         // blocks freed
	Hits         int64 `json:"hits"`          // requests served by the cache
	Misses       int64 `json:"misses"`        // requests that needed the driver, or failed
	DriverAllocs int64 `json:"driver_allocs"` // driver allocations that succeeded, as memcache.Stats.NumDeviceAlloc
	Retries      int64 `json:"retries"`       // driver allocations repeated after a flush, also those that failed again
	OutOfMemory  int64 `json:"out_of_memory"` // requests that failed

	OwnPeak        int64 `json:"own_peak"`        // the most in the step's own blocks
	OwnLive        int64 `json:"own_live"`        // own blocks not freed when the step ended
	OwnAllocations int64 `json:"own_allocations"` // own blocks handed out

	// H2DBytes and D2HBytes were copied to the device and to the host for the step: with its context, counted when they
	// are queued, and in the batches that it took from a loader, whenever those were uploaded.
	H2DBytes int64 `json:"h2d_bytes"`
	D2HBytes int64 `json:"d2h_bytes"`

	HostTime time.Duration `json:"host_time_ns"` // from StartStep to End
	// DeviceTime is the time on the compute stream between what was queued before the step and the end of
	// what the step queued. It is valid if DeviceTimed is set, which happens when the device is done.
	DeviceTime  time.Duration `json:"device_time_ns"`
	DeviceTimed bool          `json:"device_timed"`
	// BusyTime is the part of DeviceTime in which the stream had work; in the rest it waited for the host, or for another
	// stream. It is valid if BusyTimed is set: some devices can't tell (device.BusyTimer), and there a KernelTimer can: then it is
	// the time of the kernels.
	BusyTime  time.Duration `json:"busy_time_ns"`
	BusyTimed bool          `json:"busy_timed"`

	// Peak says who held the memory at the peak, if ProfilerConfig.Holders is set, and for steps of the table; else nil. With a
	// Stream it is there when the step is complete.
	Peak *StepPeak `json:"peak,omitempty"`

	// Communicator tells communicators apart: a hash of their ids, the same on all ranks; "": there is none.
	Communicator string `json:"communicator,omitempty"`
	// Collectives are the operations of ProfilerConfig.Communicator in the step, in their order, once the step is complete. Those of graphs are not among them.
	Collectives []StepCollective `json:"collectives,omitempty"`
	// CollectiveTime is their times together. They run beside the step's other work, and so are no part of DeviceTime alone.
	CollectiveTime time.Duration `json:"collective_time_ns,omitempty"`

	// ReplayedCollectives are the operations of ProfilerConfig.Communicator that the graphs have which were replayed in the step, by kind. CollectiveTime has none of their times,
	// which nobody knows.
	ReplayedCollectives []ReplayedCollective `json:"replayed_collectives,omitempty"`

	// Replays are the graphs that were replayed with the step's context. A replay allocates
	// nothing: of what a graph holds the allocated figures above have the blocks that its capture
	// left handed out, and GraphBytes has the rest.
	Replays []StepReplay `json:"replays,omitempty"`
}

// HitRate is the share of requests that the cache served, from 0 to 1; 0 if there were none.
func (p StepProfile) HitRate() float64 { return rate(float64(p.Hits), float64(p.Misses)) }

func rate(hits, misses float64) float64 {
	if hits+misses == 0 {
		return 0
	}
	return hits / (hits + misses)
}

// duration is what a step took: the longer of its times on the host and on the device.
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
	Modules    []memcache.Share `json:"modules"` // by memcache.Label.Module; memory of none has the name ""
	Graphs     int64            `json:"graphs"`  // bytes that graphs held besides
	Free       int64            `json:"free"`    // bytes that the cache held from the driver besides, for any request
}

// StepCollective is an operation of a step's communicator, or a group as one.
type StepCollective struct {
	// Number is that of its first call among those that all ranks of the communicator make, from 1
	// on: the same on every rank. 0: it is sends and receives.
	Number    int64  `json:"number"`
	Operation string `json:"operation"` // "all_reduce", "group"
	Bytes     int64  `json:"bytes"`     // as NCCL's tests count them
	// Time is the device's, from when its stream came to it until this rank was done with it, the
	// waiting for other ranks included.
	Time time.Duration `json:"time_ns"`
}

// ReplayedCollective are the operations of one kind that the graphs of a step's replays have. They
// have no times: a graph is one launch.
type ReplayedCollective struct {
	Operation string `json:"operation"` // as in [StepCollective]
	Count     int64  `json:"count"`     // operations, a group as one, by the replays
	Bytes     int64  `json:"bytes"`     // of all of them together, as NCCL's tests count them
}

// StepReplay is what a graph holds that was replayed in a step, as it was when the graph was
// captured. Sizes are bytes.
type StepReplay struct {
	Graph       uint64 `json:"graph"`       // its number among the captures of the cache
	Count       int64  `json:"count"`       // replays in the step
	Held        int64  `json:"held"`        // the most that its operations hold at once, with blocks that are handed out still
	Allocations int64  `json:"allocations"` // blocks that they use

	Pool         memcache.PoolID `json:"pool"`          // the private pool that they are in
	PoolGraphs   int64           `json:"pool_graphs"`   // how many graphs share it
	PoolReserved int64           `json:"pool_reserved"` // its segments

	// Each list adds up to Held, the largest first. They are there where Peak is, and in
	// Summary.LastReplayed.
	Categories []memcache.Share `json:"categories,omitempty"`
	Modules    []memcache.Share `json:"modules,omitempty"` // by memcache.Label.Module; memory of none has the name ""

	memory *memcache.GraphMemory
}
