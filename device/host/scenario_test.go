package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/cistern-ml/cistern/device"
)

// bench is the environment of a scenario: a device with two streams, and memory.
type bench struct {
	wrong   bool // leave the ordering out
	between int  // operations on both streams between the two accesses
	dev     *Device
	a, b    *stream
	mem     device.Ptr
	noise   [2]device.Ptr
	host    []byte
	early   device.Event // recorded on a before everything else, and synchronized
	event   device.Event
	again   device.Event // recorded repeatedly
}

const scenarioBytes = 4096

// scenarios are programs that have a race if x.wrong is set, and are correct otherwise.
var scenarios = map[string]func(x *bench){
	"kernel writes, kernel reads": func(x *bench) {
		x.kernel(x.a, x.mem, true)
		x.handOver()
		x.kernel(x.b, x.mem, false)
	},
	"memset, copy": func(x *bench) {
		must(x.a.Memset(x.mem, 1, scenarioBytes))
		x.handOver()
		must(x.b.CopyD2H(x.host, x.mem))
	},
	"copy, memset": func(x *bench) {
		must(x.a.CopyD2D(x.noise[0], x.mem, scenarioBytes))
		x.handOver()
		must(x.b.Memset(x.mem, 1, scenarioBytes))
	},
	"rows, and what lies between": func(x *bench) {
		// Rows of 64 bytes, 128 apart. b writes one of them if x.wrong is set, and between them
		// otherwise.
		must(x.a.Copy2D(&device.Copy2D{Width: 64, Height: 32, DstHost: x.host, DstPitch: 64, Src: x.mem, SrcPitch: 128}))
		x.busy()
		p := x.mem + 128*7
		if !x.wrong {
			p += 64
		}
		must(x.b.Memset(p, 1, 64))
	},
	"rows of the host, and what lies between": func(x *bench) {
		must(x.a.Copy2D(&device.Copy2D{Width: 64, Height: 32, DstHost: x.host, DstPitch: 128, Src: x.mem, SrcPitch: 64}))
		x.busy()
		if x.wrong {
			x.host[128*7+63] = 1
		} else {
			x.host[128*7+64] = 1
		}
		must(x.a.Synchronize(context.Background()))
	},
	"declared only": func(x *bench) {
		r := []device.Range{{Ptr: x.mem, Bytes: scenarioBytes}}
		must(x.a.Launch(&device.Launch{Func: func() {}, Writes: r}))
		x.handOver()
		must(x.b.Launch(&device.Launch{Func: func() {}, Reads: r}))
	},
	"touched only": func(x *bench) {
		b := must1(x.dev.Bytes(x.mem, scenarioBytes))
		must(x.a.Launch(&device.Launch{Func: func() { b[17]++ }}))
		x.handOver()
		must(x.b.Launch(&device.Launch{Func: func() { b[17]++ }}))
	},
	"event recorded too early": func(x *bench) {
		if x.wrong {
			must(x.a.Record(x.event))
		}
		x.kernel(x.a, x.mem, true)
		if !x.wrong {
			must(x.a.Record(x.event))
		}
		x.busy()
		must(x.b.Wait(x.event))
		x.kernel(x.b, x.mem, false)
	},
	"event recorded again, old record waited for": func(x *bench) {
		must(x.a.Record(x.event))
		if x.wrong {
			must(x.b.Wait(x.event))
		}
		x.kernel(x.a, x.mem, true)
		must(x.a.Record(x.event))
		x.busy()
		if !x.wrong {
			must(x.b.Wait(x.event))
		}
		x.kernel(x.b, x.mem, false)
	},
	"source of an upload overwritten": func(x *bench) {
		must(x.a.CopyH2D(x.mem, x.host))
		x.busy()
		if !x.wrong {
			must(x.a.Synchronize(context.Background()))
		}
		x.host[5] = 1
	},
	"result read too early": func(x *bench) {
		must(x.a.CopyD2H(x.host, x.mem))
		x.busy()
		if !x.wrong {
			must(x.a.Synchronize(context.Background()))
		}
		runtime.KeepAlive(x.host[7] == 3)
	},
	"other stream synchronized": func(x *bench) {
		must(x.a.CopyD2H(x.host, x.mem))
		x.busy()
		if x.wrong {
			must(x.b.Synchronize(context.Background()))
		} else {
			must(x.dev.Synchronize(context.Background()))
		}
		x.host[7] = 3
	},
	"other stream queried": func(x *bench) {
		must(x.a.CopyD2H(x.host, x.mem))
		x.busy()
		s := x.a
		if x.wrong {
			s = x.b
		}
		for !must1(s.Query()) {
			runtime.Gosched()
		}
		x.host[7] = 3
	},
	"event queried": func(x *bench) {
		if x.wrong {
			must(x.a.Record(x.event))
		}
		must(x.a.CopyD2H(x.host, x.mem))
		if !x.wrong {
			must(x.a.Record(x.event))
		}
		x.busy()
		for !must1(x.event.Query()) {
			runtime.Gosched()
		}
		x.host[7] = 3
	},
	"stream closed by another goroutine": func(x *bench) {
		must(x.a.CopyD2H(x.host, x.mem))
		x.busy()
		end := make(chan struct{})
		var closed quiet
		go func() {
			must(x.a.Close())
			closed.set()
			<-end
		}()
		closed.wait()
		if !x.wrong && !x.a.Closed() {
			panic("the stream is not closed")
		}
		x.host[7] = 3
		close(end)
	},
	"callback reads, stream goes on": func(x *bench) {
		done := make(chan struct{})
		b := must1(x.dev.Bytes(x.mem, scenarioBytes))
		must(x.a.OnDone(func(error) { touch(b); close(done) }))
		x.busy()
		if !x.wrong {
			<-done
		}
		x.kernel(x.a, x.mem, true)
		<-done
	},
	"callback of another stream": func(x *bench) {
		x.kernel(x.a, x.mem, true)
		must(x.a.OnDone(func(error) {}))
		x.handOver()
		b := must1(x.dev.Bytes(x.mem, scenarioBytes))
		must(x.b.OnDone(func(error) { touch(b) }))
	},
	"calls from two goroutines": func(x *bench) {
		// All state inside is locked, but that must not order the goroutines.
		var finished quiet
		done, end := make(chan struct{}), make(chan struct{})
		x.busy()
		go func() {
			x.host[0] = 2
			x.everyCall()
			finished.set()
			close(done)
			<-end // the detector forgets goroutines that have ended
		}()
		finished.wait()
		if !x.wrong {
			<-done
		}
		x.everyCall()
		x.host[0] = 3
		close(end)
	},
	"waiting for the same record": func(x *bench) {
		gate, done, end := make(chan struct{}), make(chan struct{}), make(chan struct{})
		must(x.a.Launch(&device.Launch{Func: func() { <-gate }}))
		must(x.a.Record(x.event))
		go func() {
			x.host[0] = 2
			must(x.event.Synchronize(context.Background()))
			close(done)
			<-end
		}()
		waitedFor(x.event.(*event).present())
		close(gate)
		x.busy()
		if !x.wrong {
			<-done
		}
		must(x.event.Synchronize(context.Background()))
		x.host[0] = 3
		close(end)
	},
	"two goroutines wait for the same record": func(x *bench) {
		gate, done, end := make(chan struct{}), make(chan struct{}), make(chan struct{})
		must(x.a.Launch(&device.Launch{Func: func() { <-gate }}))
		must(x.a.Record(x.event))
		r := x.event.(*event).present()
		go func() {
			waitedFor(r)
			time.Sleep(20 * time.Millisecond) // until both wait; their order is not determined
			close(gate)
			<-end
		}()
		go func() {
			x.host[0] = 2
			must(x.event.Synchronize(context.Background()))
			close(done)
			<-end
		}()
		waitedFor(r)
		must(x.event.Synchronize(context.Background()))
		if !x.wrong {
			<-done
		}
		x.host[0] = 3
		close(end)
	},
	"event synchronized while it is not complete": func(x *bench) {
		gate, end := make(chan struct{}), make(chan struct{})
		if x.wrong {
			must(x.a.Launch(&device.Launch{Func: func() { <-gate }}))
			must(x.a.Record(x.event))
			must(x.a.CopyD2H(x.host, x.mem))
		} else {
			must(x.a.CopyD2H(x.host, x.mem))
			must(x.a.Launch(&device.Launch{Func: func() { <-gate }}))
			must(x.a.Record(x.event))
		}
		go func() {
			waitedFor(x.event.(*event).present())
			close(gate)
			<-end
		}()
		must(x.event.Synchronize(context.Background()))
		drain(x.a)
		x.host[7] = 3
		close(end)
	},
	"two readers": func(x *bench) {
		// Two reads need no order.
		r := []device.Range{{Ptr: x.mem, Bytes: scenarioBytes}}
		must(x.a.Launch(&device.Launch{Func: func() {}, Reads: r}))
		x.busy()
		if x.wrong {
			must(x.b.Launch(&device.Launch{Func: func() {}, Writes: r}))
		} else {
			must(x.b.Launch(&device.Launch{Func: func() {}, Reads: r}))
		}
	},
	"stream closed": func(x *bench) {
		must(x.a.CopyD2H(x.host, x.mem))
		x.busy()
		if x.wrong {
			must(x.b.Close())
		} else {
			must(x.a.Close())
		}
		x.host[7] = 3
	},
	"device closed": func(x *bench) {
		must(x.a.CopyD2H(x.host, x.mem))
		x.busy()
		if !x.wrong {
			_ = x.dev.Close()
		}
		x.host[7] = 3
	},
	"a kernel fails": func(x *bench) {
		// A caller that gets the error is ordered after its cause.
		x.busy()
		must(x.a.CopyD2H(x.host, x.mem))
		must(x.a.Launch(&device.Launch{Func: func() { panic("on purpose") }}))
		drain(x.a)
		if !x.wrong {
			if _, err := x.dev.NewEvent(device.EventOptions{}); err == nil {
				panic("the device does not have the error")
			}
		}
		x.host[7] = 3
	},
	"freed by another goroutine": func(x *bench) {
		// Free waits for the operation, but does not synchronize with it.
		other := must1(x.dev.Alloc(scenarioBytes))
		must(x.a.CopyD2H(x.host, other))
		x.busy()
		must(x.dev.Free(other))
		if !x.wrong {
			must(x.a.Synchronize(context.Background()))
		}
		x.host[7] = 3
	},
	"mapped again": func(x *bench) {
		// New memory at old addresses needs no order between the streams.
		p := must1(x.dev.Reserve(granularity))
		must(x.dev.Map(p, granularity))
		x.kernel(x.a, p, true)
		x.busy()
		if !x.wrong {
			must(x.dev.Unmap(p, granularity))
			must(x.dev.Map(p, granularity))
		}
		x.kernel(x.b, p, true)
	},
	"unmapped while the host reads": func(x *bench) {
		// Like Free, Unmap waits for the operation but does not synchronize with it. Neither does
		// Map.
		p := must1(x.dev.Reserve(granularity))
		must(x.dev.Map(p, granularity))
		must(x.a.CopyD2H(x.host, p))
		x.busy()
		must(x.dev.Unmap(p, granularity))
		must(x.dev.Map(p, granularity))
		if !x.wrong {
			must(x.a.Synchronize(context.Background()))
		}
		x.host[7] = 3
	},
}

func scenarioNames() []string { return slices.Sorted(maps.Keys(scenarios)) }

func runScenario(full string) {
	var between int
	var wrong bool
	name, rest, _ := strings.Cut(full, "/")
	if _, err := fmt.Sscanf(rest, "%d/%t", &between, &wrong); err != nil {
		panic(err)
	}
	d := must1(New(Config{Capacity: 8 << 20}))
	x := &bench{wrong: wrong, between: between, dev: d, mem: must1(d.Alloc(scenarioBytes)),
		noise: [2]device.Ptr{must1(d.Alloc(scenarioBytes)), must1(d.Alloc(scenarioBytes))},
		host:  must1(d.AllocPinned(scenarioBytes)),
		a:     must1(d.NewStream(device.StreamOptions{})).(*stream), b: must1(d.NewStream(device.StreamOptions{})).(*stream),
		early: must1(d.NewEvent(device.EventOptions{})), event: must1(d.NewEvent(device.EventOptions{})),
		again: must1(d.NewEvent(device.EventOptions{}))}
	x.kernel(x.a, x.noise[0], true)
	must(x.a.Record(x.early))
	must(x.early.Synchronize(context.Background()))
	scenarios[name](x)
	err := d.Synchronize(context.Background())
	if !errors.Is(err, device.ErrSticky) && !errors.Is(err, device.ErrClosed) {
		must(err)
	}
	_ = d.Close() // reports memory that the scenario did not free
}

// kernel queues a kernel that accesses every byte at p.
func (x *bench) kernel(s *stream, p device.Ptr, write bool) {
	b := must1(x.dev.Bytes(p, scenarioBytes))
	l := &device.Launch{Func: func() {
		if write {
			touch(b)
		} else {
			runtime.KeepAlive(bytes.Count(b, []byte{1}))
		}
	}}
	r := []device.Range{{Ptr: p, Bytes: scenarioBytes}}
	if write {
		l.Writes = r
	} else {
		l.Reads = r
	}
	must(s.Launch(l))
}

// touch changes every byte of b. The detector remembers the last few accesses to each word.
func touch(b []byte) {
	for i := range b {
		b[i]++
	}
}

// handOver orders later work of b after the work of a so far, unless x.wrong is set.
func (x *bench) handOver() {
	if !x.wrong {
		must(x.a.Record(x.event))
	}
	x.busy()
	if !x.wrong {
		must(x.b.Wait(x.event))
	}
}

// busy queues x.between operations that don't access x.mem on each stream, and waits for everything
// in a way that the race detector does not see. Then it queries the early event.
func (x *bench) busy() {
	for i := range x.between {
		for j, s := range []*stream{x.a, x.b} {
			p := x.noise[j]
			switch i % 3 {
			case 0:
				must(s.Memset(p, byte(i), scenarioBytes))
			case 1:
				must(s.CopyD2D(p, p+scenarioBytes/2, scenarioBytes/2))
			default:
				b := must1(x.dev.Bytes(p, 64))
				must(s.Launch(&device.Launch{Func: func() { b[0]++ }, Writes: []device.Range{{Ptr: p, Bytes: 64}}}))
			}
		}
	}
	drain(x.a)
	drain(x.b)
	if !must1(x.early.Query()) {
		panic("the early event is not complete")
	}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func must1[T any](v T, err error) T {
	must(err)
	return v
}
