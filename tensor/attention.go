package tensor

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
)

// AttentionConfig configures an attention. Its zero value is PyTorch's default.
type AttentionConfig struct {
	// Causal hides from query i the keys after key i (is_causal).
	Causal bool
	// Scale is the factor of the products of queries and keys; 0 means 1/√E.
	Scale float64
	// Keys, unless it is 0, is the number of keys and values in use. Those after them are capacity
	// of a cache and are not read; such an attention has no gradient. [Layers.SelfAttention]
	// ignores Keys.
	Keys int
}

// AttentionGrads are the gradients of an attention's arguments. The gradient of an argument that
// was broadcast has the dimensions of the whole batch.
type AttentionGrads struct {
	Query, Key, Value *Tensor
	Mask              *Tensor // (batch, L, S); nil unless requested
}

// ScaledDotProductAttention returns y = softmax(q kᵀ scale + mask) v, (…, L, V), for queries q (…,
// L, E), keys k (…, S, E) and values v (…, S, V). Their batch dimensions broadcast
// (torch.nn.functional.scaled_dot_product_attention, without dropout).
//
// mask broadcasts to (…, L, S). A mask of the tensors' dtype is added to the scores. A mask of
// uint8 hides the keys at which it is 0. With a nil mask, every key is visible. A query that sees
// no key gets 0.
//
// The scores are never stored. Instead, sums, float64 (…, L, 2), holds each query's greatest score
// s and 1 / Σ exp(score - s), for [Gradients.ScaledDotProductAttentionGrad].
func (l Layers) ScaledDotProductAttention(ctx context.Context, q, k, v, mask *Tensor, cfg AttentionConfig) (y, sums *Tensor, err error) {
	rt := l.rt
	const op = "ScaledDotProductAttention"
	in, err := rt.acquireAttention(op, mask, q, k, v)
	if err != nil {
		return nil, nil, err
	}
	defer in.release()
	a, err := rt.planAttention(op, q, k, v, mask, cfg)
	if err != nil {
		return nil, nil, err
	}
	return rt.attend(ctx, op, a, q, k, v, mask)
}

// ScaledDotProductAttentionGrad returns the gradients of an attention's arguments. dy is the
// gradient of its result y. ofMask requests the gradient of the mask, too; the mask must then be of
// floating point. The gradients are the same in every run.
func (d Gradients) ScaledDotProductAttentionGrad(ctx context.Context, dy, y, sums, q, k, v, mask *Tensor, cfg AttentionConfig, ofMask bool) (AttentionGrads, error) {
	rt := d.rt
	const op = "ScaledDotProductAttentionGrad"
	in, err := rt.acquireAttention(op, mask, q, k, v, dy, y)
	if err != nil {
		return AttentionGrads{}, err
	}
	defer in.release()
	a, err := rt.planAttention(op, q, k, v, mask, cfg)
	if err == nil {
		err = checkAttended(op, dy, y, sums, a)
	}
	if err == nil && cfg.Keys != 0 {
		err = fmt.Errorf("tensor: %s: %w: %d keys of a cache have no gradient", op, ErrInvalid, cfg.Keys)
	}
	if err == nil && ofMask && a.plan.Masking != plan.FloatMask {
		err = fmt.Errorf("tensor: %s: %w: a mask that is nil or uint8 has no gradient", op, ErrInvalid)
	}
	if err != nil {
		return AttentionGrads{}, err
	}
	p := a.plan
	g := grads{rt: rt, ctx: ctx, op: op, dtype: q.dtype}
	matrices := func(wanted bool, rows, cols int) *Tensor {
		var room [fewDims]int
		return g.alloc(wanted, append(append(Shape(room[:0]), p.Dims...), rows, cols))
	}
	of := AttentionGrads{Query: matrices(true, p.L, p.E), Key: matrices(true, p.S, p.E), Value: matrices(true, p.S, p.V), Mask: matrices(ofMask, p.L, p.S)}
	if g.err == nil {
		g.err = rt.attendGrad(ctx, op, p, of, dy, y, sums, q, k, v, mask)
	}
	if err := g.done(of.Query, of.Key, of.Value, of.Mask); err != nil {
		return AttentionGrads{}, err
	}
	return of, nil
}

// SelfAttention is the attention of a sequence with itself, in the given number of heads. Each row
// of qkv (rows, batch, 3n), or (batch, rows, 3n) if batchFirst, holds n numbers of queries, then n
// of keys and n of values; the heads divide each n among them in order. y is qkv's shape with n
// instead of 3n, and is computed without a copy of qkv. mask broadcasts to (batch, heads, rows,
// rows). sums are for [Gradients.SelfAttentionGrad].
func (l Layers) SelfAttention(ctx context.Context, qkv, mask *Tensor, heads int, batchFirst bool, cfg AttentionConfig) (y, sums *Tensor, err error) {
	rt := l.rt
	const op = "SelfAttention"
	in, err := rt.acquireAttention(op, mask, qkv)
	if err != nil {
		return nil, nil, err
	}
	defer in.release()
	s, err := rt.planSelf(op, qkv, mask, heads, batchFirst, cfg)
	if err != nil {
		return nil, nil, err
	}
	return rt.attend(ctx, op, s, qkv, qkv, qkv, mask)
}

// SelfAttentionGrad returns the gradient of qkv in [Layers.SelfAttention]. dy is the gradient of
// its result y.
func (d Gradients) SelfAttentionGrad(ctx context.Context, dy, y, sums, qkv, mask *Tensor, heads int, batchFirst bool, cfg AttentionConfig) (*Tensor, error) {
	rt := d.rt
	const op = "SelfAttentionGrad"
	in, err := rt.acquireAttention(op, mask, qkv, dy, y)
	if err != nil {
		return nil, err
	}
	defer in.release()
	s, err := rt.planSelf(op, qkv, mask, heads, batchFirst, cfg)
	if err == nil {
		err = checkAttended(op, dy, y, sums, s)
	}
	if err != nil {
		return nil, err
	}
	return rt.result(ctx, op, qkv.dtype, qkv.shape, func(out *Tensor) error {
		return rt.attendGrad(ctx, op, s.plan, AttentionGrads{Query: out, Key: out, Value: out}, dy, y, sums, qkv, qkv, qkv, mask)
	})
}

// attentionPlan is the plan of an attention, with the shapes of its result and its sums.
type attentionPlan struct {
	plan        *plan.Attention
	shape, sums Shape
}

func (rt *Runtime) planSelf(op string, qkv, mask *Tensor, heads int, batchFirst bool, cfg AttentionConfig) (*attentionPlan, error) {
	k := planKey{kind: planSelfAttended}
	k.lists(qkv.shape)
	k.mask(mask)
	k.add(heads)
	k.flags(batchFirst, cfg.Causal)
	k.number(math.Float64bits(cfg.Scale))
	return remembered(rt, &k, func() (*attentionPlan, error) { return planSelfAttention(op, qkv, mask, heads, batchFirst, cfg) })
}

// mask adds to the key the properties of a mask that a plan depends on. The mask may be nil.
func (k *planKey) mask(mask *Tensor) {
	if mask == nil {
		k.add(-1)
		return
	}
	k.lists(mask.shape)
	k.flags(mask.is(Uint8))
}

func planSelfAttention(op string, qkv, mask *Tensor, heads int, batchFirst bool, cfg AttentionConfig) (*attentionPlan, error) {
	if err := wantRank(op, qkv, 3); err != nil {
		return nil, err
	}
	n := qkv.shape[2] / 3
	if heads < 1 || qkv.shape[2]%3 != 0 || n%heads != 0 {
		return nil, fmt.Errorf("tensor: %s: %w: %v in %d heads: want a last dimension of 3 times a multiple of the heads", op, ErrShape, qkv.shape, heads)
	}
	rows, batch := qkv.shape[0], qkv.shape[1]
	if batchFirst {
		rows, batch = batch, rows
	}
	head := n / heads
	layout := func(columns, at int) plan.Layout {
		if batchFirst {
			return plan.Layout{Batch: []int{rows * columns, head}, Row: columns, At: at}
		}
		return plan.Layout{Batch: []int{columns, head}, Row: batch * columns, At: at}
	}
	p := &plan.Attention{Dims: []int{batch, heads}, L: rows, S: rows, E: head, V: head, Causal: cfg.Causal, Scale: cfg.scale(head)}
	p.Query, p.Key, p.Value, p.Out = layout(3*n, 0), layout(3*n, n), layout(3*n, 2*n), layout(n, 0)
	p.DQuery, p.DKey, p.DValue = p.Query, p.Key, p.Value
	if err := maskAttention(op, p, Shape{batch, heads}, mask); err != nil {
		return nil, err
	}
	return &attentionPlan{plan: p, shape: Shape{qkv.shape[0], qkv.shape[1], n}, sums: Shape{batch, heads, rows, 2}}, nil
}

func (cfg AttentionConfig) scale(e int) float64 {
	if cfg.Scale != 0 {
		return cfg.Scale
	}
	return 1 / math.Sqrt(float64(max(1, e)))
}

// acquireAttention is acquireFloats for all operands except the mask, which may be nil.
func (rt *Runtime) acquireAttention(op string, mask *Tensor, ts ...*Tensor) (operands, error) {
	if err := rt.check(op, ts...); err != nil {
		return operands{}, err
	}
	if err := wantFloats(op, ts...); err != nil {
		return operands{}, err
	}
	if mask != nil && !mask.is(Uint8) && mask.dtype != ts[0].dtype {
		return operands{}, fmt.Errorf("tensor: %s: %w: the mask is %v: want %v or uint8", op, ErrDtype, mask.dtype, ts[0].dtype)
	}
	return rt.acquire(op, present(ts, mask)...)
}

// contiguous is the layout of matrices that follow each other.
func contiguous(batch Shape, rows, cols int) plan.Layout {
	return plan.Layout{Batch: batchStrides(batch, len(batch), rows*cols), Row: cols}
}

func (rt *Runtime) planAttention(op string, q, k, v, mask *Tensor, cfg AttentionConfig) (*attentionPlan, error) {
	key := planKey{kind: planAttended}
	key.lists(q.shape, k.shape, v.shape)
	key.mask(mask)
	key.flags(cfg.Causal)
	key.number(math.Float64bits(cfg.Scale))
	key.add(cfg.Keys)
	return remembered(rt, &key, func() (*attentionPlan, error) {
		p, batch, err := planOneAttention(op, q.shape, k.shape, v.shape, cfg)
		if err == nil {
			err = maskAttention(op, p, batch, mask)
		}
		if err != nil {
			return nil, err
		}
		return &attentionPlan{p, slices.Concat(batch, Shape{p.L, p.V}), slices.Concat(batch, Shape{p.L, 2})}, nil
	})
}

// planOneAttention plans an attention of separate tensors without a mask, and returns the shape of
// the batch.
func planOneAttention(op string, q, k, v Shape, cfg AttentionConfig) (*plan.Attention, Shape, error) {
	if min(len(q), len(k), len(v)) < 2 {
		return nil, nil, fmt.Errorf("tensor: %s: %w: queries %v, keys %v, values %v: want matrices (…, L, E), (…, S, E), (…, S, V)", op, ErrShape, q, k, v)
	}
	split := func(s Shape) (batch Shape, rows, cols int) { return s[:len(s)-2], s[len(s)-2], s[len(s)-1] }
	bq, l, e := split(q)
	bk, s, e2 := split(k)
	bv, s2, n := split(v)
	if e != e2 || s != s2 {
		return nil, nil, fmt.Errorf("tensor: %s: %w: queries %v, keys %v, values %v: want (…, L, E), (…, S, E), (…, S, V)", op, ErrShape, q, k, v)
	}
	keys := s
	if cfg.Keys != 0 {
		keys = cfg.Keys
	}
	if keys < 0 || keys > s {
		return nil, nil, fmt.Errorf("tensor: %s: %w: %d keys of %v: want 1 to %d", op, ErrShape, cfg.Keys, k, s)
	}
	batch, err := broadcastShape(op, bq, bk)
	if err == nil {
		batch, err = broadcastShape(op, batch, bv)
	}
	if err != nil {
		return nil, nil, err
	}
	rank := len(batch)
	return &plan.Attention{Dims: batch, L: l, S: keys, E: e, V: n, Causal: cfg.Causal, Scale: cfg.scale(e), Out: contiguous(batch, l, n),
		Query: plan.Layout{Batch: batchStrides(bq, rank, l*e), Row: e}, Key: plan.Layout{Batch: batchStrides(bk, rank, s*e), Row: e},
		Value:  plan.Layout{Batch: batchStrides(bv, rank, s*n), Row: n},
		DQuery: contiguous(batch, l, e), DKey: contiguous(batch, s, e), DValue: contiguous(batch, s, n)}, batch, nil
}

// maskAttention adds a mask to the plan, if it is not nil.
func maskAttention(op string, p *plan.Attention, batch Shape, mask *Tensor) error {
	p.Mask = plan.Layout{Batch: make([]int, len(batch))}
	if mask == nil {
		return nil
	}
	if err := broadcastsTo(op+": the mask", mask.shape, slices.Concat(batch, Shape{p.L, p.S})); err != nil {
		return err
	}
	p.Masking = plan.FloatMask
	if mask.is(Uint8) {
		p.Masking = plan.BoolMask
	}
	all := batchStrides(mask.shape, len(batch)+2, 1)
	p.Mask = plan.Layout{Batch: all[:len(batch)], Row: all[len(batch)]}
	p.MaskColumn = all[len(batch)+1]
	return nil
}

func checkAttended(op string, dy, y, sums *Tensor, a *attentionPlan) error {
	if sums == nil || !sums.is(Float64) || !slices.Equal(dy.shape, a.shape) || !slices.Equal(y.shape, a.shape) || !slices.Equal(sums.shape, a.sums) {
		return fmt.Errorf("tensor: %s: %w: result %v, its gradient %v: want %v, and sums, float64 %v", op, ErrShape, y.shape, dy.shape, a.shape, a.sums)
	}
	return nil
}

// attend allocates the results and computes them.
func (rt *Runtime) attend(ctx context.Context, op string, a *attentionPlan, q, k, v, mask *Tensor) (y, sums *Tensor, err error) {
	return rt.pair(ctx, op, q.dtype, a.shape, Float64, a.sums, func(y, sums *Tensor) error {
		if sums.bytes == 0 {
			return nil
		}
		return rt.planned(ctx, backend.Attention, a.plan, y, sums, q, k, v, mask)
	})
}

// attendGrad computes the gradients. They are 0 if there are no queries, keys or values.
func (rt *Runtime) attendGrad(ctx context.Context, op string, p *plan.Attention, d AttentionGrads, dy, y, sums, q, k, v, mask *Tensor) error {
	if p.Count() == 0 || p.L == 0 || p.S == 0 {
		return rt.memset(op, d.Query, d.Key, d.Value, d.Mask)
	}
	in, err := rt.acquire(op, sums)
	if err != nil {
		return err
	}
	defer in.release()
	return rt.planned(ctx, backend.AttentionGrad, p, d.Query, d.Key, d.Value, d.Mask, dy, y, sums, q, k, v, mask)
}
