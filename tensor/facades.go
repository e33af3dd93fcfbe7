package tensor

// The operations are methods of four types that [Runtime] embeds, so that they are called as
// rt.Add or rt.Softmax, and each group has its own page of documentation. All of them queue their
// work on the runtime's stream; the rules are those of [Runtime].
type (
	// Elementwise has the functions of single elements, and arithmetic that broadcasts.
	Elementwise struct{ rt *Runtime }

	// Reductions has sums, statistics and softmax.
	Reductions struct{ rt *Runtime }

	// Layers has what layers of a model compute: products, convolutions, pooling, normalisation,
	// attention, recurrence, look-ups and losses.
	Layers struct{ rt *Runtime }

	// Gradients has the gradients of the operations, and clips gradients.
	Gradients struct{ rt *Runtime }
)
