package host

import (
	"context"
	"maps"
	"runtime"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/race"
)

func init() { maps.Copy(scenarios, graphScenarios) }

// graphScenarios are programs with a mistake in a capture or around a replay.
var graphScenarios = map[string]func(x *bench){
	"a graph without the event": func(x *bench) {
		g := x.capture(func() {
			must(x.a.Record(x.event))
			must(x.b.Wait(x.event))
			x.kernel(x.a, x.mem, true)
			x.noises()
			if !x.wrong {
				must(x.a.Record(x.event))
				must(x.b.Wait(x.event))
			}
			x.kernel(x.b, x.mem, false)
		})
		must(g.Replay(x.a))
	},
	"a graph without the event, replayed again": func(x *bench) {
		g := x.capture(func() {
			must(x.a.Record(x.event))
			must(x.b.Wait(x.event))
			must(x.b.Memset(x.mem, 1, scenarioBytes))
			x.noises()
			must(x.b.Record(x.again))
			if !x.wrong {
				must(x.a.Wait(x.again))
			}
			must(x.a.CopyD2H(x.host, x.mem))
		})
		must(g.Replay(x.b))
		must(g.Replay(x.a))
	},
	"a graph whose event is recorded too early": func(x *bench) {
		g := x.capture(func() {
			if x.wrong {
				must(x.a.Record(x.event))
			}
			x.kernel(x.a, x.mem, true)
			if !x.wrong {
				must(x.a.Record(x.event))
			}
			must(x.b.Wait(x.event))
			x.noises()
			x.kernel(x.b, x.mem, false)
		})
		must(g.Replay(x.a))
	},
	"a replay, and another stream": func(x *bench) {
		g := x.capture(func() { x.kernel(x.a, x.mem, true) })
		must(g.Replay(x.a))
		x.handOver()
		x.kernel(x.b, x.mem, false)
	},
	"another stream, and a branch of a replay": func(x *bench) {
		g := x.capture(func() {
			must(x.a.Record(x.event))
			must(x.b.Wait(x.event))
			x.kernel(x.b, x.mem, true)
		})
		c := must1(x.dev.NewStream(device.StreamOptions{})).(*stream)
		x.kernel(c, x.mem, true)
		x.busy()
		if x.wrong {
			must(g.Replay(x.b))
		} else {
			must(g.Replay(c))
		}
	},
	"a branch of a replay, and its stream": func(x *bench) {
		g := x.capture(func() {
			must(x.a.Record(x.event))
			must(x.b.Wait(x.event))
			x.kernel(x.b, x.mem, true)
		})
		must(g.Replay(x.a))
		x.busy()
		if x.wrong {
			x.kernel(x.b, x.mem, true) // the stream of the capture is not that of the replay
		} else {
			x.kernel(x.a, x.mem, true)
		}
	},
	"replays on two streams": func(x *bench) {
		work := func() { x.kernel(x.a, x.mem, true) }
		g := x.capture(work)
		other := g
		if x.wrong {
			other = x.capture(work) // two graphs are not ordered, two replays of one graph are
		}
		must(g.Replay(x.a))
		x.busy()
		must(other.Replay(x.b))
	},
	"result of a replay read too early": func(x *bench) {
		g := x.capture(func() { must(x.a.CopyD2H(x.host, x.mem)) })
		must(g.Replay(x.a))
		x.busy()
		if !x.wrong {
			must(x.a.Synchronize(context.Background()))
		}
		runtime.KeepAlive(x.host[7] == 3)
	},
	"graph closed": func(x *bench) {
		g := x.capture(func() { must(x.a.CopyD2H(x.host, x.mem)) })
		must(g.Replay(x.b))
		x.busy()
		if !x.wrong {
			must(g.Close())
		}
		runtime.KeepAlive(x.host[7] == 3)
	},
	"source of a replay overwritten": func(x *bench) {
		g := x.capture(func() { must(x.a.CopyH2D(x.mem, x.host)) })
		must(g.Replay(x.a))
		must(x.a.Synchronize(context.Background()))
		x.host[5] = 1
		must(g.Replay(x.a))
		x.busy()
		if !x.wrong {
			must(x.a.Synchronize(context.Background()))
		}
		x.host[5] = 2
	},
	"captured by two goroutines": func(x *bench) {
		// Work of b's goroutine before its capture precedes b's kernel, but not a's.
		done := make(chan int)
		value := 0
		kernel := func(s *stream) { must(s.Launch(&device.Launch{Func: func() { value++ }})) }
		g := x.capture(func() {
			must(x.a.Record(x.event))
			must(x.b.Wait(x.event))
			go func() {
				value = 1
				if x.wrong {
					must(x.b.Memset(x.noise[0], 1, 64))
				} else {
					kernel(x.b)
				}
				close(done)
			}()
			for !closed(done) {
				runtime.Gosched()
			}
			if x.wrong {
				kernel(x.a)
			}
		})
		must(g.Replay(x.a))
		x.busy()
	},
}

// capture captures work on a; b may join, and a waits for b in the end.
func (x *bench) capture(work func()) device.Graph {
	must(x.a.BeginCapture())
	work()
	if x.b.Capturing() {
		must(x.b.Record(x.event))
		must(x.a.Wait(x.event))
	}
	return must1(x.a.EndCapture())
}

// noises queues x.between operations that don't access x.mem on both streams.
func (x *bench) noises() {
	for i := range x.between {
		for j, s := range []*stream{x.a, x.b} {
			must(s.Memset(x.noise[j], byte(i), 64))
		}
	}
}

// closed reports whether c is closed, in a way that the race detector does not see.
//
//go:norace
func closed(c chan int) (ok bool) {
	race.Disable()
	select {
	case <-c:
		ok = true
	default:
	}
	race.Enable()
	return ok
}
