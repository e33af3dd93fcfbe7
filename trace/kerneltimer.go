package trace

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cistern-ml/cistern/device"
)

// The kernels inside a step are known by the order in which the host queued the step's events and
// theirs. That order is certain unless a goroutine is launching a kernel while another starts or
// ends the step: the kernel may then be on either side, and the step has no busy time. Launches are
// therefore counted from begin to end, including those without events.

// mostKernels is the most kernels with events in a KernelTimer.
const mostKernels = 1 << 15

// KernelTimer measures the busy time of a [Profiler]'s steps on devices that can't
// ([device.BusyTimer]), such as GPUs. While a step is open, each kernel and each matrix product on
// the profiler's Stream gets two timed events around it. The step's [StepProfile].BusyTime is the
// time between them. The stream is made with Launching, and the profiler with the timer:
//
//	var kernels trace.KernelTimer
//	stream, err := dev.NewStream(device.StreamOptions{Launching: kernels.Launching})
//	profiler, err := trace.NewProfiler(trace.ProfilerConfig{
//		Cache: cache, Stream: stream, Kernels: &kernels,
//	})
//
// The two events cost about as much as a kernel's launch, on the host and in the stream's queue. On
// the device a kernel's time includes the cost of the events, 1 to 2 µs. If the stream had run dry,
// it also includes the host's time for the launch after the first event. Copies and fills don't
// count.
//
// In these cases a step has no busy time, rather than a wrong one: an event failed (Flush returns
// the error); a goroutine was launching while another started or ended the step; nothing was ever
// launched on the stream with Launching; or the incomplete steps have more than 32,768 kernels
// (Flush returns an error the first time).
//
// The zero KernelTimer is ready for use, by one profiler at a time. It must not be copied.
// Launching is safe for concurrent use.
type KernelTimer struct {
	profiler atomic.Pointer[Profiler] // nil: no kernel is timed; changed with mu

	mu        sync.Mutex // innermost: no call is made with it held
	began     int64      // launches on the profiler's stream
	launching int        // of these, not yet returned
	idle      int64      // began when the profiler was attached
	open      []*Step    // steps whose busy time may still be known
	kept      int        // kernels that have events, or will have
	told      bool       // the error of too many was reported
}

// kernel is a kernel between two timed events.
type kernel struct {
	before, after device.Event
	users         int // steps; guarded by KernelTimer.mu
}

// Launching observes the kernels of a stream, as [device.StreamOptions].Launching.
// [device.LaunchingHooks] combines it with other hooks, best as the last. It does not block. It
// ignores streams other than the profiler's. A nil KernelTimer ignores all.
func (k *KernelTimer) Launching(s device.Stream, _ string) (launched func(error)) {
	if k == nil {
		return nil
	}
	p := k.profiler.Load()
	if p == nil || s == nil || s.ID() != p.config.Stream.ID() {
		return nil
	}
	var before device.Event
	if k.begin(p) {
		if before = p.mark(); before == nil {
			k.giveUp(p, 1)
		}
	}
	return func(err error) { k.launched(p, before, err) }
}

// begin counts a launch, and reports whether it gets events.
func (k *KernelTimer) begin(p *Profiler) (timed bool) {
	k.mu.Lock()
	k.began++
	k.launching++
	for _, s := range k.open {
		s.kernels.overlap = s.kernels.overlap || k.launching > 1
	}
	timed = len(k.open) > 0
	tooMany := timed && k.kept >= mostKernels
	if timed = timed && !tooMany; timed {
		k.kept++
	}
	told := k.told
	k.told = told || tooMany
	k.mu.Unlock()
	if tooMany {
		k.giveUp(p, 0)
		if !told {
			p.keep(fmt.Errorf("trace: timing kernels: incomplete steps have more than %d kernels, so the open steps have no busy time", mostKernels))
		}
	}
	return timed
}

// launched ends the launch that Launching began.
func (k *KernelTimer) launched(p *Profiler, before device.Event, err error) {
	var after device.Event
	if before != nil && err == nil {
		if after = p.mark(); after == nil {
			k.giveUp(p, 0)
		}
	}
	timed := &kernel{before: before, after: after} // with no or one event if unused
	k.mu.Lock()
	if after != nil {
		// If a step started after the launch began, its end finds that out.
		for _, s := range k.open {
			s.kernels.list = append(s.kernels.list, timed)
			timed.users++
		}
	}
	unused := before != nil && timed.users == 0
	if unused {
		k.kept--
	}
	k.launching--
	k.mu.Unlock()
	if unused {
		timed.discard(p)
	}
}

// giveUp leaves the open steps without a busy time, and subtracts a number of kernels whose events
// failed.
func (k *KernelTimer) giveUp(p *Profiler, without int) {
	k.mu.Lock()
	k.kept -= without
	var unused []*kernel
	for _, s := range k.open {
		s.kernels.unknown = true
		unused = append(unused, k.forget(s)...)
	}
	k.open = nil
	k.mu.Unlock()
	discard(p, unused)
}

// forget removes a step's kernels, and returns those that no other step uses. k.mu is held.
func (k *KernelTimer) forget(s *Step) (unused []*kernel) {
	for _, l := range s.kernels.list {
		if l.users--; l.users == 0 {
			unused = append(unused, l)
		}
	}
	s.kernels.list = nil
	k.kept -= len(unused)
	return unused
}

func discard(p *Profiler, kernels []*kernel) {
	for _, l := range kernels {
		l.discard(p)
	}
}

func (l *kernel) discard(p *Profiler) {
	p.discard(l.before)
	p.discard(l.after)
}

// attach makes k time the kernels of p; it returns false if k has another profiler.
func (k *KernelTimer) attach(p *Profiler) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.idle = k.began
	return k.profiler.CompareAndSwap(nil, p)
}

// detach ends the timing. Open steps have no busy time.
func (k *KernelTimer) detach(p *Profiler) {
	if k == nil {
		return
	}
	k.mu.Lock()
	mine := k.profiler.CompareAndSwap(p, nil)
	k.mu.Unlock()
	if mine {
		k.giveUp(p, 0)
	}
}

// launches returns the number of launches so far, or -1 if one has not returned, which differs from
// every later number. k.mu is held.
func (k *KernelTimer) launches() int64 {
	if k.launching > 0 {
		return -1
	}
	return k.began
}

// remove removes a step from the open ones. k.mu is held.
func (k *KernelTimer) remove(s *Step) {
	if i := slices.Index(k.open, s); i >= 0 {
		k.open = slices.Delete(k.open, i, i+1)
	}
}

// String returns a text such as "kernel timer of 12 launches".
func (k *KernelTimer) String() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return fmt.Sprintf("kernel timer of %d launches", k.began)
}
