package transfer_test

import (
	"bytes"
	"slices"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/transfer"
)

// count counts a queued copy.
func (a *randomCaller) count(op transfer.Op, copies, bytes int64) {
	for _, st := range []*transfer.Stats{&a.sum, a.statistics()} {
		switch op {
		case transfer.OpH2D:
			st.H2DCopies, st.H2DBytes = st.H2DCopies+copies, st.H2DBytes+bytes
		case transfer.OpD2H:
			st.D2HCopies, st.D2HBytes = st.D2HCopies+copies, st.D2HBytes+bytes
		case transfer.OpD2D:
			st.D2DCopies, st.D2DBytes = st.D2DCopies+copies, st.D2DBytes+bytes
		}
	}
}

func (a *randomCaller) statistics() *transfer.Stats {
	if a.books != nil {
		return &a.books.st
	}
	return new(transfer.Stats)
}

func (a *randomCaller) copy(s step) {
	b, v, st := a.buffer(s.a), a.variable(s.b), a.stream(s.c)
	if b == nil {
		return
	}
	at, n := part(s.d, len(b.want))
	to := int(s.a>>8) % (blockBytes - n + 1)
	a.order(v, st)
	var c *transfer.Copy
	var err error
	a.begin()
	op := transfer.OpH2D
	if s.op == "h2d" {
		c, err = a.pool.H2D(a.ctx, st, v.block, int64(to), b.buffer, b.at+int64(at), int64(n))
	} else {
		op = transfer.OpD2H
		c, err = a.pool.D2H(a.ctx, st, b.buffer, b.at+int64(at), v.block, int64(to), int64(n))
	}
	a.end()
	if a.refused(b, err) {
		return
	}
	if a.ok(err) {
		a.count(op, 1, int64(n))
		a.handle(c, st, int64(n))
	}
	if !a.used(b, st, err) {
		return
	}
	if s.op == "h2d" {
		copy(v.want[to:], b.want[at:at+n])
	} else {
		copy(b.want[at:], v.want[to:to+n])
	}
}

// handle checks the methods of a copy on s.
func (a *randomCaller) handle(c *transfer.Copy, s device.Stream, n int64) {
	if c.Bytes() != n {
		a.fail("a copy of %d bytes says %d", n, c.Bytes())
	}
	if end := lastOf(s); end != nil && a.books != nil && !a.w.dead() && c.Done() == inFlight([]*simRecord{end}) {
		a.fail("Done is %t", c.Done())
	}
}

func (a *randomCaller) copyRows(s step) {
	b, v, st := a.buffer(s.a), a.variable(s.b), a.stream(s.c)
	if b == nil {
		return
	}
	rows, inBuffer, inBlock := someRows(s.d, len(b.want), blockBytes)
	var err error
	a.order(v, st)
	a.begin()
	op := transfer.OpH2D
	if s.op == "h2d-rows" {
		rows.SrcPitch, rows.DstPitch = inBuffer, inBlock
		_, err = a.pool.H2DStrided(a.ctx, st, v.block, 3, b.buffer, b.at, rows)
	} else {
		op = transfer.OpD2H
		rows.DstPitch, rows.SrcPitch = inBuffer, inBlock
		_, err = a.pool.D2HStrided(a.ctx, st, b.buffer, b.at, v.block, 3, rows)
	}
	a.end()
	if a.refused(b, err) {
		return
	}
	if a.ok(err) {
		a.count(op, 1, rows.Width*rows.Height)
	}
	if !a.used(b, st, err) {
		return
	}
	if s.op == "h2d-rows" {
		move(v.want, 3, b.want, 0, rows)
	} else {
		move(b.want, 0, v.want, 3, rows)
	}
}

// someRows returns rows that just fit n bytes and, at offset 3, m bytes.
func someRows(x uint32, n, m int) (rows transfer.Rows, inN, inM int64) {
	rows.Width = 1 + int64(x%uint32(min(n, 12)))
	rows.Height = 1 + int64(x>>8)%(int64(n)/rows.Width)
	inN, inM = rows.Width, rows.Width
	if rows.Height > 1 {
		inN = (int64(n) - rows.Width) / (rows.Height - 1)
		inM = (int64(m) - 3 - rows.Width) / (rows.Height - 1)
		if x>>20%2 == 0 {
			inM = rows.Width + int64(x>>24)%(inM-rows.Width+1)
		}
	}
	return rows, inN, inM
}

func (a *randomCaller) deviceCopy(s step) {
	from, to, st := a.variable(s.a), a.variable(s.b), a.stream(s.c)
	if from == to {
		return
	}
	at, n := part(s.d, blockBytes)
	n = min(n, 100)
	target := int(s.a>>8) % (blockBytes - n + 1)
	rows := transfer.Rows{Width: int64(n%9 + 1), Height: int64(1 + s.d%12), SrcPitch: int64(n%9 + 1 + int(s.d>>8)%20), DstPitch: int64(n%9 + 1 + int(s.d>>16)%20)}
	a.order(from, st)
	a.order(to, st)
	var err error
	a.begin()
	if s.op == "d2d" {
		_, err = a.pool.D2D(a.ctx, st, to.block, int64(target), from.block, int64(at), int64(n))
	} else {
		n = int(rows.Width * rows.Height)
		_, err = a.pool.D2DStrided(a.ctx, st, to.block, 5, from.block, 9, rows)
	}
	a.end()
	if a.ok(err) {
		a.count(transfer.OpD2D, 1, int64(n))
	} else if a.parts == 0 {
		return
	}
	if s.op == "d2d" {
		copy(to.want[target:], from.want[at:at+n])
	} else {
		move(to.want, 5, from.want, 9, rows)
	}
}

func (a *randomCaller) fill(s step) {
	v, st := a.variable(s.a), a.stream(s.b)
	at, n := part(s.c, blockBytes)
	a.order(v, st)
	a.begin()
	_, err := a.pool.Fill(a.ctx, st, v.block, int64(at), int64(n), byte(s.d))
	a.end()
	if a.ok(err) || a.parts > 0 {
		copy(v.want[at:], bytes.Repeat([]byte{byte(s.d)}, n))
	}
}

// launch adds 3 to a part of a buffer in place, or adds that part to a block.
func (a *randomCaller) launch(s step) {
	b, v, st := a.buffer(s.a), a.variable(s.b), a.stream(s.c)
	if b == nil {
		return
	}
	at, n := part(s.d, len(b.want))
	a.begin()
	r, err := b.buffer.Range(b.at+int64(at), int64(n))
	a.end()
	a.require(err)
	visible, ok := a.w.dev.(device.HostVisible)
	if !ok {
		return
	}
	mem := b.memory[b.at+int64(at):][:n]
	l := &device.Launch{Name: "add", Reads: []device.Range{r}, Writes: []device.Range{r}, Func: func() {
		for i := range mem {
			mem[i] += 3
		}
	}}
	use := transfer.BufferUse{Buffer: b.buffer, Writes: true}
	if s.op == "mix" {
		a.order(v, st)
		a.require(v.block.RecordStream(st))
		to, err := visible.Bytes(v.block.Ptr(), int64(n))
		a.require(err)
		l.Writes = []device.Range{v.block.Range(0, int64(n))}
		l.Func = func() {
			for i := range to {
				to[i] += mem[i]
			}
		}
		use.Writes = false
	}
	a.begin()
	_, err = a.pool.Launch(a.ctx, st, l, use)
	a.end()
	if a.refused(b, err) {
		return
	}
	a.ok(err)
	if !a.used(b, st, err) {
		return
	}
	for i := range n {
		if s.op == "mix" {
			v.want[i] += b.want[at+i]
		} else {
			b.want[at+i] += 3
		}
	}
}

func (a *randomCaller) upload(s step) {
	v, st := a.variable(s.a), a.stream(s.b)
	at, n := part(s.c, blockBytes)
	data := a.pattern(s.d, n)
	a.order(v, st)
	a.begin()
	_, err := a.pool.Upload(a.ctx, st, v.block, int64(at), data)
	a.end()
	if a.staged(int64(n), st, err) && a.ok(err) {
		a.count(transfer.OpH2D, 1, int64(n))
	}
	if err == nil || a.parts > 0 {
		copy(v.want[at:], data)
	}
	clear(data)
}

// staged models a call that gets a buffer of n bytes and releases it, with or without a copy on s.
// It reports whether the call got the buffer.
func (a *randomCaller) staged(n int64, s device.Stream, err error) bool {
	if err == nil {
		a.got(n)
	}
	if a.books == nil {
		return err == nil
	}
	if want := a.books.get(n, err); want != nil {
		a.agree(err, want)
		return a.ok(err)
	}
	b := &heldBuffer{}
	a.used(b, s, err)
	a.books.release(n, b.uses, b.tainted)
	return true
}

func (a *randomCaller) download(s step) {
	v, st := a.variable(s.a), a.stream(s.b)
	at, n := part(s.c, blockBytes)
	got := a.pattern(s.d, n)
	before := slices.Clone(got)
	a.order(v, st)
	a.begin()
	err := a.pool.Download(a.ctx, st, got, v.block, int64(at))
	a.end()
	if a.staged(int64(n), st, err) && (a.ok(err) || a.parts > 0 && !a.fired[failRecord]) {
		a.count(transfer.OpD2H, 1, int64(n))
	}
	want := v.want[at : at+n]
	if err != nil {
		want = before
	}
	if !bytes.Equal(got, want) {
		a.fail("Download with the error %v: %s", err, difference(got, want))
	}
}
