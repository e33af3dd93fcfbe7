package transfer_test

import (
	"bytes"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/transfer"
)

// pendingBatch is a batch that was submitted and whose outputs nobody has looked at yet.
type pendingBatch struct {
	batch *transfer.Batch
	done  *transfer.Copy
	want  [][]byte
}

// also is use of another variable on the same stream.
func (p *program) also(s device.Stream) (v *variable, offset, bytes int64, ok bool) {
	v = &p.vars[p.rng.IntN(len(p.vars))]
	if !p.check(s.Wait(v.event)) {
		return nil, 0, 0, false
	}
	offset = p.rng.Int64N(int64(len(v.want)))
	return v, offset, 1 + p.rng.Int64N(int64(len(v.want))-offset), true
}

// add is a kernel that adds 3 to a part of v.
func (p *program) add(v *variable, offset, bytes int64) (*device.Launch, bool) {
	var mem []byte
	if dev, ok := p.dev.(device.HostVisible); ok {
		var err error
		if mem, err = dev.Bytes(v.block.Ptr()+device.Ptr(offset), bytes); !p.check(err) {
			return nil, false
		}
	}
	return add(p.t, p.dev, v.block.Range(offset, bytes), mem, 3), true
}

// batch is a batch of a few steps on two variables. It may be closed at once, or collected now or later.
func (p *program) batch() {
	v, s, _, _, ok := p.use()
	if !ok {
		return
	}
	b := p.pool.NewBatch()
	ctx, outputs := p.t.Context(), [][]byte{}
	undo, used := p.vars, []*variable{v}
	var w *variable
	var offset, bytes int64
	for n := 1 + p.rng.IntN(8); n > 0 && ok; n-- {
		if w, offset, bytes, ok = p.also(s); !ok {
			break
		}
		used = append(used, w)
		after := append([]byte(nil), w.want...) // undo keeps what was before
		data := fill(make([]byte, bytes), byte(p.rng.IntN(256)))
		switch p.rng.IntN(4) {
		case 0:
			ok = p.check(b.Upload(ctx, w.block, offset, data))
			copy(after[offset:], data)
		case 1:
			part := data[:p.rng.IntN(len(data)+1)]
			ok = p.check(b.UploadPadded(ctx, w.block, offset, part, bytes))
			clear(after[offset : offset+bytes])
			copy(after[offset:], part)
		case 2:
			var l *device.Launch
			if l, ok = p.add(w, offset, bytes); ok {
				require.NoError(p.t, b.Launch(l, w.block))
				for i := range bytes {
					after[offset+i] += 3
				}
			}
		case 3:
			var slot int
			var err error
			if slot, err = b.Output(ctx, w.block, offset, bytes); p.check(err) {
				require.Equal(p.t, len(outputs), slot)
				outputs = append(outputs, append([]byte(nil), after[offset:offset+bytes]...))
			} else {
				ok = false
			}
		}
		w.want = after
	}
	var c *transfer.Copy
	if ok {
		var err error
		c, err = b.Submit(ctx, s)
		ok = p.check(err)
	}
	if !ok { // nothing ran
		p.vars = undo
		require.NoError(p.t, b.Close())
		return
	}
	for _, w := range used {
		p.check(s.Record(w.event))
	}
	if p.rng.IntN(4) == 0 {
		require.NoError(p.t, b.Close())
		return
	}
	p.batches = append(p.batches, pendingBatch{b, c, outputs})
	if p.rng.IntN(3) == 0 {
		p.check(v.block.Free())
		p.renew(v, s)
	}
}

// collectBatches looks at the outputs of batches: of all, or of those that are done.
func (p *program) collectBatches(wait bool) {
	kept := p.batches[:0]
	for _, b := range p.batches {
		if !wait && !b.done.Done() {
			kept = append(kept, b)
			continue
		}
		var got, before [][]byte
		for range b.want {
			got = append(got, fill(make([]byte, p.rng.IntN(30_000)), 1))
			before = append(before, append([]byte(nil), got[len(got)-1]...))
		}
		if p.check(b.batch.Collect(p.t.Context(), &got)) {
			require.Equal(p.t, len(b.want), len(got))
			for i := range got {
				require.True(p.t, bytes.Equal(b.want[i], got[i]))
			}
		} else {
			require.Equal(p.t, before, got, "a failed Collect touched the outputs")
		}
		require.NoError(p.t, b.batch.Close())
	}
	p.batches = kept
}

// registered copies from or to a registered slice.
func (p *program) registered() {
	v, s, offset, bytes, ok := p.use()
	if !ok {
		return
	}
	mine := fill(make([]byte, bytes), byte(p.rng.IntN(256)))
	b, err := p.pool.Register(p.t.Context(), mine)
	if !p.check(err) {
		return
	}
	up := p.rng.IntN(2) == 0
	if up {
		_, err = p.pool.H2D(p.t.Context(), s, v.block, offset, b, 0, bytes)
	} else {
		_, err = p.pool.D2H(p.t.Context(), s, b, 0, v.block, offset, bytes)
	}
	ok = p.check(err)
	if ok && up {
		copy(v.want[offset:], mine)
	}
	p.check(s.Record(v.event))
	if p.check(b.Release()) && ok && !p.failed { // it has waited
		require.Equal(p.t, v.want[offset:offset+bytes], mine)
	}
	clear(mine)
}

// inPlace adds to a buffer where it is on one stream, and uploads it on another: the pool orders them.
func (p *program) inPlace() {
	v, s, offset, bytes, ok := p.use()
	if !ok {
		return
	}
	b, err := p.pool.Get(p.t.Context(), bytes)
	if !p.check(err) {
		return
	}
	defer func() { require.NoError(p.t, b.Release()) }()
	mem := fill(b.Bytes(), byte(p.rng.IntN(256)))
	data := append([]byte(nil), mem...)
	at, err := b.Range(0, bytes)
	if !p.check(err) {
		return
	}
	for range p.rng.IntN(3) {
		on := [2]device.Stream{p.a, p.b}[p.rng.IntN(2)]
		_, err := p.pool.Launch(p.t.Context(), on, add(p.t, p.dev, at, mem, 9), transfer.BufferUse{Buffer: b, Writes: true})
		if !p.check(err) {
			return
		}
		for i := range data {
			data[i] += 9
		}
	}
	if _, err = p.pool.H2D(p.t.Context(), s, v.block, offset, b, 0, bytes); p.check(err) {
		copy(v.want[offset:], data)
	}
	p.check(s.Record(v.event))
}

// deviceCopy copies from one variable to another.
func (p *program) deviceCopy() {
	from, s, at, n, ok := p.use()
	if !ok {
		return
	}
	to, offset, room, ok := p.also(s)
	if !ok || from == to {
		return
	}
	n = min(n, room)
	if _, err := p.pool.D2D(p.t.Context(), s, to.block, offset, from.block, at, n); p.check(err) {
		copy(to.want[offset:], from.want[at:at+n])
	}
	p.check(s.Record(from.event))
	p.check(s.Record(to.event))
}

func (p *program) fill() {
	v, s, offset, n, ok := p.use()
	if !ok {
		return
	}
	value := byte(p.rng.IntN(256))
	if _, err := p.pool.Fill(p.t.Context(), s, v.block, offset, n, value); p.check(err) {
		copy(v.want[offset:], bytes.Repeat([]byte{value}, int(n)))
	}
	p.check(s.Record(v.event))
}
