package audit

import (
	"context"
	"slices"
	"time"

	"github.com/stretchr/testify/require"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/trace"
	"github.com/cistern-ml/cistern/transfer"
)

// alloc allocates so many bytes of the default pool, or of the private one.
func (w *world) alloc(in *scene, label memcache.Label, bytes int64, private bool) *held {
	r := request{bytes: bytes, stream: w.main.ID(), inside: in.running()}
	ctx, named := w.labelled(in, label)
	r.label = named
	if private {
		ctx, r.pool = w.other.Context(ctx), w.other.ID()
	}
	w.dev.take()
	block, err := w.cache.Alloc(ctx, bytes, w.main)
	if private && w.main.(device.GraphCapturer).Capturing() {
		w.books.pinned[w.other.ID()] = true
	}
	calls := w.dev.take()
	if bytes == 0 {
		require.NoError(w.t, err)
		require.True(w.t, block.IsZero())
		return nil
	}
	traced := w.traced(in)
	kind := map[bool]string{false: "small", true: "large"}[rounded(min(bytes, 1<<60)) > mib]
	w.tellCalls(calls, in, kind)
	if err != nil {
		var oom *memcache.OutOfMemoryError
		require.ErrorAs(w.t, err, &oom)
		w.ooms, w.failed = append(w.ooms, oom), append(w.failed, r)
		w.draw("allocator: alloc (failed)", r.label, figures{"requested": bytes})
		about := figures{"cistern.stream.id": r.stream, "cistern.pool.name": kind, "cistern.block.requested_size": bytes}.label(r.label)
		if traced {
			about["error.type"] = "out_of_memory"
			w.tell("cistern.memory.alloc", about)
		} else if w.slow(in) {
			e := in.running()[0]
			e.noted = append(e.noted, span{"cistern.memory.alloc.failed", about})
		}
		if bytes >= 1<<60 { // refused before anything is counted
			require.Equal(w.t, r.label, oom.Label, "%v", w)
			return nil
		}
		w.books.alloc(&r, nil, calls)
		w.checkOOM(&r, oom)
		return nil
	}
	h := w.books.alloc(&r, &block, calls)
	if private {
		w.private++
	}
	h.within = in.within()
	w.place("cistern.memory.alloc", h, h.within)
	if h.traced = traced; traced {
		about := h.about()
		about["cistern.cache.hit"] = !slices.ContainsFunc(calls, func(c call) bool { return !c.free })
		w.tell("cistern.memory.alloc", about)
	}
	total := r.label
	total.Step = 0
	if w.totals[total] == nil {
		w.totals[total] = map[int64]memcache.Holding{}
	}
	sum := w.totals[total][h.Size()]
	w.totals[total][h.Size()] = memcache.Holding{Label: total, Size: h.Size(), Blocks: sum.Blocks + 1, Bytes: sum.Bytes + h.Size(), Requested: sum.Requested + bytes}
	w.level()
	return h
}

// labelled returns the scene's context with the label, and the label with the scene's step.
func (w *world) labelled(in *scene, label memcache.Label) (context.Context, memcache.Label) {
	ctx := memcache.WithCategory(memcache.WithModule(in.ctx, label.Module), label.Category)
	if label.Tags != "" {
		ctx = memcache.WithTag(ctx, "tenant", label.Tags)
		label.Tags = "tenant=" + label.Tags
	}
	label.Step = 0
	if len(in.steps) > 0 {
		label.Step = in.steps[0].number
	}
	return ctx, label
}

// traced reports whether an allocation or free with the scene's context has a span.
func (w *world) traced(in *scene) bool {
	if open := in.running(); len(open) > 0 {
		return open[0].all
	}
	return w.detail == trace.All
}

// level keeps what counters show at this moment.
func (w *world) level() {
	l := level{allocated: w.books.all["AllocatedBytes"][0].current, active: w.books.all["ActiveBytes"][0].current, reserved: w.books.all["ReservedBytes"][0].current}
	for _, h := range w.books.now().blocks {
		l.byCategory[h.label.Category] += h.Size()
	}
	w.levels = append(w.levels, l)
}

// free frees a block, with a context or without.
func (w *world) free(in *scene, h *held, context bool) {
	traced := context && w.traced(in)
	if at := in.within(); context && (at != nil || w.run().IsValid()) {
		w.place("cistern.memory.free", h, at)
	} else {
		w.place("cistern.memory.free", h, h.within)
	}
	var err error
	if context {
		err = h.FreeContext(in.ctx)
	} else {
		err = h.Free()
		traced = w.detail == trace.All
	}
	require.NoError(w.t, err)
	if traced || h.traced {
		w.tell("cistern.memory.free", h.about())
	}
	if h.traced && !traced {
		for _, s := range w.books.steps {
			s.tied++
		}
	}
	w.books.freed(h)
	w.level()
}

// hold holds up the side stream, so that blocks that are recorded on it stay pending.
func (w *world) hold() {
	if w.held == nil {
		w.held = cisterntest.Hold(w.t, w.side)
	}
}

// unhold frees the blocks that the side stream uses, and releases the stream.
func (w *world) unhold() {
	if w.held == nil {
		return
	}
	var pending []*held
	for _, h := range append([]*held(nil), w.books.blocks...) {
		if len(h.users) > 0 && !h.pending {
			w.free(w.scenes[0], h, false)
		}
	}
	w.held()
	w.held = nil
	require.NoError(w.t, w.side.Synchronize(context.Background()))
	require.NoError(w.t, w.cache.PollFrees())
	for _, e := range w.books.events { // in the order of the frees
		if e.Action != memcache.ActionFreeRequested {
			continue
		}
		for _, h := range w.books.blocks {
			if h.pending && h.Serial() == e.Serial {
				pending = append(pending, h)
			}
		}
	}
	for _, h := range pending {
		w.books.completed(h)
	}
}

// use records the side stream on a block.
func (w *world) use(h *held) {
	w.hold()
	require.NoError(w.t, h.RecordStream(w.side))
	if len(h.users) == 0 {
		h.users = append(h.users, w.side.ID())
	}
}

// start starts a step inside of a scene.
func (w *world) start(in *scene, number int64) *scene {
	e := w.books.begin(number)
	e.all = w.detail == trace.All || w.started%3 == 0
	e.within = in.within()
	w.stepsByNumber[number] = e
	w.started++
	inside := &scene{steps: append([]*step{e}, in.steps...)}
	inside.ctx, e.scope = w.cache.Scope(in.ctx, "around the step")
	inside.ctx, e.handle = w.profiler.StartStep(inside.ctx, number)
	e.traceID = oteltrace.SpanContextFromContext(inside.ctx).TraceID().String()
	e.startedBefore = time.Now()
	e.mark = w.recorder.Step(number)
	w.scenes = append(w.scenes, inside)
	return inside
}

// end ends a step, which may be any that is open.
func (w *world) end(e *step, fail bool) {
	if fail {
		e.failed, w.lastFailed = true, e
		e.handle.Fail(errProgram)
	}
	e.mark.End()
	e.scope.End()
	e.endedAfter = time.Now()
	w.books.finish(e)
	e.handle.End()
	e.endedBefore = time.Now()
	w.ended = append(w.ended, e)
	if !e.all {
		w.skipped += max(0, e.counts["Allocations"]+e.counts["Frees"]-e.tied)
	}
}

// failLate fails a step whose span and profile are complete.
func (w *world) failLate(e *step) {
	require.NoError(w.t, ignore(w.profiler.Flush(context.Background()), errProgram))
	e.handle.Fail(errProgram)
	if !e.failed && !e.late {
		e.late, w.lastFailed = true, e
	}
}

// copy copies to a block, and back.
func (w *world) copy(in *scene, h *held, up, down int64) {
	ctx := in.ctx
	c, err := w.pool.Upload(ctx, w.main, h.Block, 0, make([]byte, up))
	require.NoError(w.t, err)
	require.NoError(w.t, c.Wait(ctx))
	w.copied(in, transfer.OpH2D, up, h)
	w.got(in, up)
	require.NoError(w.t, w.pool.Download(ctx, w.main, make([]byte, down), h.Block, 0))
	w.copied(in, transfer.OpD2H, down, h)
	w.got(in, down)
}

// copied adds a completed copy, through a buffer that is idle again.
func (w *world) copied(in *scene, op transfer.Op, bytes int64, h *held) {
	if bytes == 0 {
		return
	}
	w.pool.Stats() // sees that the copy is done
	w.draw("transfer: "+op.String(), memcache.LabelOf(in.ctx), figures{"bytes": bytes})
	w.copies = append(w.copies, copied{op, bytes, h.Serial()})
	for _, e := range in.running() {
		if op == transfer.OpH2D {
			e.h2d += bytes
		} else {
			e.d2h += bytes
		}
	}
	if w.slow(in) {
		w.tell("cistern.transfer."+op.String(), figures{"cistern.transfer.operation": op, "cistern.transfer.direction": op, "cistern.stream.id": w.main.ID(),
			"cistern.block.serial": h.Serial(), "cistern.transfer.size": bytes})
	}
}

// got adds a buffer that was taken from the pool.
func (w *world) got(in *scene, bytes int64) {
	if bytes == 0 {
		return
	}
	asked := w.dev.takePinned()
	w.gets = append(w.gets, buffer{bytes, len(asked) == 0})
	for _, n := range asked {
		w.draw("transfer: pinned_alloc", memcache.LabelOf(in.ctx), figures{"bytes": n})
		if w.slow(in) {
			w.tell("cistern.pinned.alloc", figures{"cistern.pinned.size": n})
		}
	}
}

// offload moves a block's bytes to pinned memory and frees the block, as an offloaded activation,
// and brings them back to a new one.
func (w *world) offload(in *scene, h *held) {
	bytes := min(h.requested, mib)
	buffer, err := w.pool.Get(in.ctx, bytes)
	require.NoError(w.t, err)
	w.got(in, bytes)
	out, err := w.pool.D2H(in.ctx, w.main, buffer, 0, h.Block, 0, bytes)
	require.NoError(w.t, err)
	require.NoError(w.t, out.Wait(in.ctx))
	w.copied(in, transfer.OpD2H, bytes, h)
	label := h.label
	label.Tags = ""
	w.free(in, h, true)
	if back := w.alloc(in, label, bytes, false); back != nil {
		c, err := w.pool.H2D(in.ctx, w.main, back.Block, 0, buffer, 0, bytes)
		require.NoError(w.t, err)
		require.NoError(w.t, c.Wait(in.ctx))
		w.copied(in, transfer.OpH2D, bytes, back)
	}
	require.NoError(w.t, buffer.Release())
	w.pool.Stats() // sees that its copies are done
}

// relabel gives a block another label.
func (w *world) relabel(h *held, label memcache.Label) {
	require.NoError(w.t, h.SetLabel(label))
	before := h.label
	h.label = label
	e := h.entry(memcache.ActionRelabel)
	e.Label = label
	w.books.event(e)
	if before.Category != label.Category {
		w.level()
	}
}

// empty is EmptyCache of the default pool, or of the private one.
func (w *world) empty(in *scene, private bool) {
	if w.held != nil {
		return // it would wait
	}
	if private && w.books.pinned[w.other.ID()] {
		require.ErrorIs(w.t, w.other.EmptyCache(in.ctx), memcache.ErrInvalid)
		return
	}
	w.dev.take()
	for _, name := range []string{"empty_cache", "synchronize"} {
		w.drawing = append(w.drawing, span{"allocator: " + name, figures{"device": "host"}})
	}
	if w.slow(in) {
		w.tell("cistern.memory.empty_cache", figures{})
		w.tell("cistern.memory.synchronize", figures{})
	}
	if private {
		require.NoError(w.t, w.other.EmptyCache(in.ctx))
	} else {
		require.NoError(w.t, w.cache.EmptyCache(in.ctx))
	}
	w.books.count("NumSyncAllStreams", 1)
	calls := w.dev.take()
	w.tellCalls(calls, in, "")
	w.books.driverCalls(calls, nil)
}

// replay reports the replay of a graph to the cache.
func (w *world) replay(in *scene, graph int) {
	for len(w.graphs) <= graph {
		n := int64(len(w.graphs) + 1)
		pool := &memcache.GraphPool{ID: memcache.PoolID{0, uint64(n)}}
		pool.Graphs.Store(n)
		pool.Reserved.Store(n * 20 * mib)
		w.graphs = append(w.graphs, &memcache.GraphMemory{Number: uint64(100 + n), Held: n * 3 * mib, Allocations: 2 * n, Pool: pool, Holdings: []memcache.Holding{
			{Label: memcache.Label{Module: "head", Category: memcache.CategoryActivation}, Size: 2 * mib * n, Blocks: 1, Bytes: 2 * mib * n},
			{Label: memcache.Label{Category: memcache.CategoryGradient}, Size: mib * n, Blocks: 1, Bytes: mib * n},
		}})
	}
	g := w.graphs[graph]
	w.cache.Replayed(in.ctx, g)
	for _, s := range in.steps {
		s.replayed(g)
	}
}
