package device

// GraphCapturer is implemented by streams whose work can be captured into a [Graph], to be queued again and again by one call.
//
// Between BeginCapture and EndCapture what is queued on the stream does not run: it is checked as ever, and becomes an operation of
// the graph. Another stream joins the capture when it waits for an event that was recorded in it, and leaves it with EndCapture, which
// is the first stream's: by then that one must have waited for an event behind everything that the others got. What orders two
// operations of a graph is what orders them on streams: their stream, and events. Records and waits are no work of the graph.
//
// Some calls can't be captured. They return an error that wraps [ErrCapturing], queue nothing, and leave the capture as it was:
//   - on a stream that is captured: Query, Synchronize, OnDone, Close, BeginCapture, a Replay, a Wait for an event that was not recorded
//     in the same capture (one that was never recorded is complete, and fine), and copies of host memory that is not pinned, which are
//     refused anywhere;
//   - on an event that was last recorded in a capture, now or earlier: Query, Synchronize, [Device.Elapsed], and a Wait of a stream
//     that is not in that capture. The event can be recorded again, and is as good as new then. A replay does not record it;
//   - [Device.Synchronize] of a device with a capture under way.
//
// Memory that a captured operation names is kept until the graph is closed: to free or unmap it, or to unregister it, is an error that
// wraps [ErrInvalid]. So is the module of a captured kernel. Streams and events may be closed once the capture has ended. Device memory may be
// allocated during a capture, which is no operation of the graph; who caches memory must not hand out to others what a graph will use.
//
// Several streams may be captured at a time, each into a graph of its own. Who captures a stream has it to itself: a call of
// another goroutine that meets BeginCapture or EndCapture falls on one side of it or the other.
type GraphCapturer interface {
	// BeginCapture begins a capture (cuStreamBeginCapture). What was queued before runs on.
	BeginCapture() error
	// EndCapture ends the capture that began on this stream, and makes its graph ready to run (cuStreamEndCapture, cuGraphInstantiate).
	// If it fails there is no graph, and no capture either: all of its streams queue work again. Work on another stream
	// that the first one did not wait for is an error that wraps [ErrCapturing].
	EndCapture() (Graph, error)
	// Capturing reports whether what is queued on the stream is captured now, whichever stream the capture began on.
	Capturing() bool
}

// ReplayNotifier is implemented by streams whose graphs tell of their replays: who counts what a program queues, and sees it once, in the capture, hears of
// it again each time that it runs.
type ReplayNotifier interface {
	// OnReplay lets f be called by each [Graph.Replay] of what the stream is being captured into, once the replay is queued, on the goroutine that
	// calls Replay and with no lock held: in the order of the OnReplays, and for several replays at a time if several goroutines replay. A graph that was updated
	// calls the functions of the other one. It reports whether the stream is captured; if it is not, f is never called.
	OnReplay(f func()) bool
}

// CaptureOrder is implemented by streams that know in which order a replay will run what is captured on them and on others. It tells who
// caches memory whether a block that was used in a capture is free in that same capture again.
type CaptureOrder interface {
	// CaptureMark stands for all that was captured on the stream so far, in the capture that it is in; nil: it is in none.
	CaptureMark() CaptureMark
}

// CaptureMark is a place in a capture.
type CaptureMark interface {
	// Before reports whether what is captured on s from now on runs after all that the mark stands for, in every replay. It does if
	// both are of one capture and s has waited for events of that, and not if the capture has ended.
	Before(s Stream) bool
}

// Graph is work that was captured once and is queued as a whole (CUgraphExec). It is safe for concurrent use, and must be closed; the
// device's Close closes what is left.
type Graph interface {
	// Device is the device that the work is for.
	Device() Device
	// Nodes is the number of operations in the graph: copies, Memsets and kernels. A library or a batch may take several for one call.
	Nodes() int
	// Replay queues the graph on s, a stream of its device, as one operation (cuGraphLaunch): behind what is queued there, and behind
	// the graph's replays before, wherever they were queued. What is queued on s later comes after all of it. It returns before the
	// work has run, and the work's faults are the device's sticky error, as ever. It is one launch named "graph" for the stream's
	// [StreamOptions].Launching.
	Replay(s Stream) error
	// Update gives the graph the parameters of another one: memory, arguments, values, kernels (cuGraphExecUpdate). The
	// other one must have been captured on the same device, with the same operations in the same order on as many streams, and does not
	// change. If it differs, or the driver can't change what differs, the error wraps [ErrInvalid] and says where, and nothing changed.
	// Update waits for the replays that are queued; from then on the graph keeps the other one's memory, and not its own.
	Update(with Graph) error
	// Close waits for the replays that are queued, and lets go of the graph and what it kept
	// (cuGraphExecDestroy). It is idempotent; every Close waits, and calls after the first one
	// return an error that wraps [ErrClosed], except Close, Nodes and Device. Graphs are not closed
	// from OnDone callbacks.
	Close() error
}
