package host

import (
	"fmt"
	"unsafe"

	"github.com/cistern-ml/cistern/internal/race"
)

// kernels runs a stream's kernels on a separate goroutine in race builds. The detector remembers
// some 65,000 events of a goroutine, and can report an access only while it remembers it. A kernel
// may access memory a million times, whereas the worker, which declares the ranges, makes only a
// few events for each operation.
type kernels struct {
	next    chan *op
	done    chan struct{}
	running *op
	begin   byte // its address carries the edge to the kernel
	end     byte // its address carries the edge back
}

//go:norace
func (s *stream) launch(o *op) {
	if !race.Enabled {
		o.call(s)
		return
	}
	k := &s.kernels
	race.ReleaseMerge(unsafe.Pointer(&k.begin))
	race.Disable()
	if k.next == nil {
		k.next, k.done = make(chan *op), make(chan struct{})
		go s.runKernels()
	}
	k.next <- o
	<-k.done
	race.Enable()
	race.Acquire(unsafe.Pointer(&k.end))
}

// endKernels ends the kernels' goroutine, if there is one.
//
//go:norace
func (s *stream) endKernels() {
	race.Disable()
	if s.kernels.next != nil {
		close(s.kernels.next)
		<-s.kernels.done
		s.kernels.next = nil
	}
	race.Enable()
}

//go:norace
func (s *stream) runKernels() {
	k := &s.kernels
	defer s.replaceKernels()
	for {
		race.Disable()
		o := <-k.next
		race.Enable()
		if o == nil {
			break
		}
		race.Acquire(unsafe.Pointer(&k.begin))
		k.running = o
		o.call(s)
		s.kernels.kernelDone()
	}
	race.Disable()
	k.done <- struct{}{}
	race.Enable()
}

//go:norace
func (k *kernels) kernelDone() {
	k.running = nil
	race.ReleaseMerge(unsafe.Pointer(&k.end))
	race.Disable()
	k.done <- struct{}{}
	race.Enable()
}

// replaceKernels starts a new goroutine if a kernel has ended this one with runtime.Goexit.
//
//go:norace
func (s *stream) replaceKernels() {
	if s.kernels.running != nil {
		go s.runKernels()
		s.kernels.kernelDone()
	}
}

//go:norace
func (o *op) call(s *stream) {
	defer o.rescue(s)
	o.kernel()
	o.ended = true
}

// rescue turns a kernel's panic or Goexit into the device's sticky error.
//
//go:norace
func (o *op) rescue(s *stream) {
	if o.ended {
		return
	}
	detail := "the kernel called runtime.Goexit"
	if r := recover(); r != nil {
		detail = fmt.Sprint("the kernel panicked: ", r)
	}
	s.dev.stick(launchFailed(o.name, detail))
}
