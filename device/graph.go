package device

// GraphCapturer is implemented by streams whose work can be captured into a [Graph], which one call
// queues as often as needed.
//
// Between BeginCapture and EndCapture, calls on the stream don't run work. They check their
// arguments as always, and add an operation to the graph. Another stream joins the capture when it
// waits for an event that was recorded in the capture. It leaves the capture at EndCapture of the
// first stream. By then the first stream must have waited for events that cover all work of the
// joined streams. Operations of a graph are ordered as on streams: by their stream and by events.
// Records and waits are not operations of the graph.
//
// Some calls can't be captured. They return an error that wraps [ErrCapturing], queue nothing, and
// leave the capture unchanged:
//   - on a stream that is captured: Query, Synchronize, OnDone, Close, BeginCapture, Replay, a Wait
//     for an event that was not recorded in the same capture (an event that was never recorded is
//     complete and may be waited for), and copies of host memory that is not pinned, which every
//     stream refuses;
//   - on an event whose last record was captured, in a present or an earlier capture: Query,
//     Synchronize, [Device.Elapsed], and a Wait of a stream that is not in that capture. The event
//     is usable again once it is recorded outside of a capture. A replay does not record it;
//   - [Device.Synchronize] of a device while a capture is in progress.
//
// The graph keeps the memory that its operations name until it is closed: freeing, unmapping or
// unregistering that memory is an error that wraps [ErrInvalid]. So is closing the module of a
// captured kernel. Streams and events may be closed once the capture has ended. Device memory may
// be allocated during a capture; the allocation is not an operation of the graph. A caching
// allocator must not reuse memory that a graph will use.
//
// Several streams may be captured at a time, each into its own graph. A stream that is being
// captured should be used by one goroutine: a concurrent call of another goroutine falls before or
// after BeginCapture and EndCapture at random.
type GraphCapturer interface {
	// BeginCapture begins a capture (cuStreamBeginCapture). Work that was queued before still runs.
	BeginCapture() error
	// EndCapture ends the capture that began on this stream and instantiates its graph
	// (cuStreamEndCapture, cuGraphInstantiate). If it fails there is no graph and the capture is
	// over: all of its streams queue work again. Work on another stream that the first stream did
	// not wait for is an error that wraps [ErrCapturing].
	EndCapture() (Graph, error)
	// Capturing reports whether calls on the stream are captured now, whether or not the capture
	// began on this stream.
	Capturing() bool
}

// ReplayNotifier is implemented by streams whose graphs report their replays. A caller that counts
// queued work sees captured work only once, in the capture; OnReplay lets it count every replay.
type ReplayNotifier interface {
	// OnReplay registers f with the graph into which the stream is being captured. Each
	// [Graph.Replay] calls f once the replay is queued, on the goroutine that calls Replay and
	// without locks, in the order in which the functions were registered. If several goroutines
	// replay, calls are concurrent. After Update a graph calls the functions of the other graph.
	// OnReplay reports whether the stream is captured; if it is not, f is never called.
	OnReplay(f func()) bool
}

// CaptureOrder is implemented by streams that track in which order replays will run operations
// captured on several streams. With it a caching allocator decides whether a block that was used in
// a capture can be reused in the same capture.
type CaptureOrder interface {
	// CaptureMark returns a mark of everything captured so far on the stream in its present
	// capture, or nil if the stream is not captured.
	CaptureMark() CaptureMark
}

// CaptureMark is a point in a capture.
type CaptureMark interface {
	// Before reports whether, in every replay, operations captured on s from now on run after
	// everything that the mark covers. That is so if both belong to one capture and s has waited
	// for the necessary events. After the capture has ended it returns false.
	Before(s Stream) bool
}

// Graph is work that was captured once and is queued as a whole (CUgraphExec). It is safe for
// concurrent use. It must be closed; the device's Close closes all graphs that are still open.
type Graph interface {
	// Device returns the device of the captured work.
	Device() Device
	// Nodes returns the number of operations in the graph: copies, Memsets and kernels. One call of
	// a library, or one batch, may count as several.
	Nodes() int
	// Replay queues the graph on s, a stream of its device, as one operation (cuGraphLaunch). It
	// runs after the work queued on s before, and after earlier replays of the graph on any stream.
	// Work queued on s later runs after all of the graph. Replay returns before the work has run;
	// faults of the work become the device's sticky error. For the stream's
	// [StreamOptions].Launching it is one launch named "graph".
	Replay(s Stream) error
	// Update replaces the graph's parameters by those of with: memory, arguments, values, kernels
	// (cuGraphExecUpdate). with must have been captured on the same device, with the same
	// operations in the same order on as many streams; it does not change. If it differs, or if the
	// driver can't apply a difference, the error wraps [ErrInvalid] and names the operation, and
	// nothing changes. Update waits for the pending replays. From then on the graph keeps the
	// memory of with instead of its own.
	Update(with Graph) error
	// Close waits for the pending replays, and releases the graph and the memory that it kept
	// (cuGraphExecDestroy). It is idempotent; every Close waits. Calls after the first Close return
	// an error that wraps [ErrClosed], except Close, Nodes and Device. Graphs must not be closed
	// from OnDone callbacks.
	Close() error
}
