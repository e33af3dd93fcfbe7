package trace

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cistern-ml/cistern/device"
)

// Which of a stream's kernels ran inside a step is known by the order in which the host queued its events and theirs. That order is
// certain as long as no goroutine is about to launch while another starts or ends the step; if one is, its kernel may be on either
// side, and the step has no busy time. So launches are counted from their begin to their end, also those that get no events.

// mostKernels is how many kernels a KernelTimer keeps the events of.
const mostKernels = 1 << 15

// KernelTimer tells the busy time of a [Profiler]'s steps on devices that can't tell it themselves ([device.BusyTimer]), GPUs for one:
// each kernel and each matrix product on the profiler's Stream gets two timed events around it while a step is open, and the step's
// [StepProfile].BusyTime is what is between them. The stream is made with Launching, and the profiler with the timer:
//
//	var kernels trace.KernelTimer
//	stream, err := dev.NewStream(device.StreamOptions{Launching: kernels.Launching})
//	profiler, err := trace.NewProfiler(trace.ProfilerConfig{Cache: cache, Stream: stream, Kernels: &kernels})
//
// Its two events cost a kernel about as much as its launch, on the host and in the stream's queue. On the device a kernel counts
// with what the events cost, 1 to 2 µs; and where the stream has run dry, with what the launch takes the host after the first event. Copies and fills don't count.
//
// A step has no busy time, rather than a wrong one, if an event failed (Flush tells), if a goroutine was about to launch while another
// started or ended the step, if nothing was ever launched on the stream with Launching, and if the steps that are not complete have
// more than 32,768 kernels (the first time Flush tells).
//
// The zero KernelTimer is ready for use, by one profiler at a time. It must not be copied. Launching is safe for concurrent use.
type KernelTimer struct {
	profiler atomic.Pointer[Profiler] // nil: no kernel is timed; changed with mu

	mu        sync.Mutex // innermost: nothing is called with it held
	began     int64      // launches on the profiler's stream
	launching int        // of these, not yet over
	idle      int64      // began, when the profiler came
	open      []*Step    // that may yet know their busy time
	kept      int        // kernels that have events, or are about to
	told      bool       // of too many
}

// kernel is what was launched between two timed events.
type kernel struct {
	before, after device.Event
	users         int // steps; guarded by KernelTimer.mu
}

// Launching sees the kernels of a stream, as [device.StreamOptions].Launching; [device.LaunchingHooks] has it beside others, best as
// the last. It waits for nothing. Streams other than the profiler's are none of its business, and a nil KernelTimer has none.
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

// begin counts a launch, and reports whether it is to have events.
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
			p.keep(fmt.Errorf("trace: timing kernels: there are events of %d, the most for steps that are not complete: more of them have no busy time", mostKernels))
		}
	}
	return timed
}

// launched ends what Launching began.
func (k *KernelTimer) launched(p *Profiler, before device.Event, err error) {
	var after device.Event
	if before != nil && err == nil {
		if after = p.mark(); after == nil {
			k.giveUp(p, 0)
		}
	}
	timed := &kernel{before: before, after: after} // one event, or none, if nobody gets it
	k.mu.Lock()
	if after != nil {
		for _, s := range k.open { // a step that has come since the begin will find out that it did
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

// giveUp leaves the open steps without a busy time, and a number of kernels without events.
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

// forget takes a step's kernels from it, and returns those that no other step has. k.mu is held.
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

// attach makes k time the kernels of p; false: it is another's.
func (k *KernelTimer) attach(p *Profiler) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.idle = k.began
	return k.profiler.CompareAndSwap(nil, p)
}

// detach ends that. Steps that are open have no busy time.
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

// launches is how many launches have begun; -1: one is not over, which no later number is equal to. k.mu is held.
func (k *KernelTimer) launches() int64 {
	if k.launching > 0 {
		return -1
	}
	return k.began
}

// remove takes a step out of the open ones. k.mu is held.
func (k *KernelTimer) remove(s *Step) {
	if i := slices.Index(k.open, s); i >= 0 {
		k.open = slices.Delete(k.open, i, i+1)
	}
}

// String is such as "kernel timer of 12 launches".
func (k *KernelTimer) String() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return fmt.Sprintf("kernel timer of %d launches", k.began)
}
