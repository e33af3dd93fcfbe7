// Package tensor provides arrays in device memory, and operations on them.
//
// A [Runtime] joins a device's cache, a pool of pinned memory and a stream. [Open] creates all of
// them; [NewRuntime] takes existing ones. A runtime creates tensors, and its methods are the
// operations:
//
//	env, err := tensor.Open("host")
//	defer env.Close()
//	x, err := tensor.FromSlice(ctx, env, []float32{1, 2, 3, 4, 5, 6}, 2, 3)
//	w, err := env.Full(ctx, 0.5, tensor.Float32, 3, 2)
//	y, err := env.MatMul(ctx, x, w)
//	sums, err := tensor.ToSlice[float32](ctx, y, nil) // waits
//
// Arrays are row-major and dense. Operations take float32, float64, bfloat16 or float16, and
// broadcast after NumPy's rules. Class labels and indices are int32 or int64, masks uint8.
//
// # Streams
//
// Every operation is queued on the runtime's stream and returns at once. Only [ToSlice], [Item] and
// [Runtime.Synchronize] wait. To use a tensor's memory on another stream, order the two with an
// event and call [Tensor.RecordStream]. Each runtime has one stream, and each tensor belongs to one
// runtime, so a second stream needs a second runtime.
//
// # Memory
//
// A tensor's memory is a block of the cache. [Tensor.Release] returns it to the cache; work that is
// already queued can still use it. A lifetime ([WithLifetime]) releases, when it closes, every
// tensor that was made with its context and not kept:
//
//	ctx, life := tensor.WithLifetime(ctx)
//	defer life.Close()
//
// Views ([Runtime.Reshape], [Runtime.Rows], [Runtime.Share]) share their memory, which is freed
// with the last of them. A tensor that becomes unreachable without Release is reclaimed when the
// garbage collector finds it, or when an allocation fails; [OnLeak] reports where it was made.
// [Runtime.Close] reports tensors that are still live.
//
// An [Offloader] moves the memory of tensors that are not used for a while to pinned host memory
// and back, on copy streams.
//
// # Accuracy
//
// Additions, products, quotients and square roots are those of IEEE 754. Exponentials and similar
// functions, sums, means, softmax and cross entropy are computed in float64 and rounded once. Sums
// are pairwise, so that in float64 their errors grow with the logarithm of the number of terms.
// Matrix products accumulate in their own type. NaN and infinities reach every result that depends
// on them. Results are the same in every run on one machine.
//
// # Special numbers
//
// For NaN, infinities, zeros of both signs and subnormal numbers, results are PyTorch's: in float32
// and float64, at each level of a processor's instructions, and on GPUs. These differences remain:
//
//   - A float32 function that is computed in float64 has no overflow in between: GELUTanh's
//     gradient at 1e30 is 1, and PyTorch's is NaN. For the same reason an infinite gradient times a
//     derivative below float32's range is infinite, not NaN.
//   - [Elementwise.PowScalar] is IEEE 754's pow: of -Inf and 0.5 it is +Inf. PyTorch takes a square
//     root, which is NaN.
//   - Products are rounded before they are added, whereas PyTorch's vector code fuses the two: a
//     centered RMSprop of gradients whose squares overflow gives NaN.
//   - The gradients of ELU and Hardtanh at NaN are the gradient of the result, as on PyTorch's GPUs
//     and as for ReLU. PyTorch's vector code gives NaN and 0. L1Loss's gradient at NaN is NaN, and
//     PyTorch's is 0.
//   - An attention's query that sees no key gives 0, and a key gets no gradient from a query that
//     does not see it, even if the query's other scores are NaN or infinite. PyTorch's softmax
//     gives NaN. NaN and infinities among values, and their gradients, may or may not reach the
//     queries from which their keys are hidden, because kernels skip tiles of hidden keys.
//   - A row that CrossEntropy ignores gets no gradient, even if its logits are NaN or +Inf. PyTorch
//     gives it NaN.
//   - The gradient of a convolution's input, and a transposed convolution, may or may not include
//     the products of NaN and infinite weights with positions outside the picture. PyTorch's result
//     depends on its algorithm, too.
//   - The gradient of a normalised row is NaN or infinite where an infinite gradient meets numbers
//     that round to 0.
//   - [Gradients.ClipNorm] leaves tensors alone if the bound is infinite, even if the norm is NaN
//     or infinite.
//
// # Errors
//
// Wrong shapes, dtypes and arguments, released tensors and tensors of another runtime are errors of
// the call, which then changes nothing; see [ErrShape] and the others. An error that only a kernel
// can find, such as a class label out of range, is returned by the next read.
//
// An operation that finds no memory, or whose launch the device refuses, makes no tensor and
// changes none. The exceptions are operations that overwrite tensors in several launches. Their
// comments describe the state after an error.
//
// # Tensors of gorgonia.org/tensor
//
// Package tensor/gorgonia allocates tensors of gorgonia.org/tensor from the cache, and shares
// memory between them and tensors of this package without a copy. Only programs that import it
// compile gorgonia's modules.
package tensor
