package main

import (
	"bytes"
	"fmt"
	"strings"
)

// kind is a group of engine methods for gorgonia.org/tensor with the same parameters.
type kind struct {
	signature string
	check     string // returns an error for arguments that Engine refuses
	// engine and device are the expressions that the methods of Engine and DeviceEngine return.
	// $name and $kernel are replaced by the method's. If the expression is empty, the engine has no
	// such method, or a handwritten one.
	engine, device string
	methods        []method
}

// method is a method of both engines. DeviceEngine leaves it out if the expression has $kernel and
// the method has no kernel.
type method struct {
	name, kernel, doc string
	deviceDoc         string // of DeviceEngine; "": doc
}

// Operations of two tensors.
var (
	arithmetic = []method{
		{name: "Add", kernel: "Add", doc: "returns a + b."},
		{name: "Sub", kernel: "Sub", doc: "returns a - b."},
		{name: "Mul", kernel: "Mul", doc: "returns a * b, elementwise."},
		{name: "Pow", kernel: "Pow", doc: "returns a to the power of b."},
		{name: "MinBetween", kernel: "Least", doc: "returns the smaller of a and b, elementwise."},
		{name: "MaxBetween", kernel: "Greatest", doc: "returns the larger of a and b, elementwise."},
	}
	divisions = []method{
		{name: "Div", kernel: "Div", doc: "returns a / b. It fails if an integer is divided by 0.", deviceDoc: "returns a / b, after IEEE 754."},
		{name: "Mod", kernel: "Mod", doc: "returns a modulo b. It fails for an integer modulo 0.", deviceDoc: "returns a modulo b."},
	}
	comparisons = []method{
		{name: "Gt", kernel: "Gt", doc: "returns a > b, elementwise."},
		{name: "Gte", kernel: "Gte", doc: "returns a >= b, elementwise."},
		{name: "Lt", kernel: "Lt", doc: "returns a < b, elementwise."},
		{name: "Lte", kernel: "Lte", doc: "returns a <= b, elementwise."},
		{name: "ElEq", kernel: "Eq", doc: "returns a == b, elementwise."},
		{name: "ElNe", kernel: "Ne", doc: "returns a != b, elementwise."},
	}
)

// withNumber returns the operations for a tensor and a number instead of two tensors.
func withNumber(ms []method) (all []method) {
	for _, m := range ms {
		doc := "returns " + m.name + " of a tensor and a number, which is the right operand if left is true."
		all = append(all, method{name: strings.TrimPrefix(m.name, "El") + "Scalar", kernel: m.kernel, doc: doc})
	}
	return all
}

const (
	toTensor = "(gtensor.Tensor, error)"
	pair     = "(a, b gtensor.Tensor, opts ...gtensor.FuncOpt) " + toTensor
	number   = "(t gtensor.Tensor, s any, left bool, opts ...gtensor.FuncOpt) " + toTensor
	one      = "(a gtensor.Tensor, opts ...gtensor.FuncOpt) " + toTensor

	binary    = `e.binary("$name", gtensor.StdEng.$name, a, b, opts)`
	scalar    = `e.scalar("$name", gtensor.StdEng.$name, t, s, left, opts)`
	unary     = `e.unary("$name", gtensor.StdEng.$name, a, opts)`
	zip       = `e.zip("$name", strided.$kernel, a, b, opts)`
	zipScalar = `e.zipScalar("$name", strided.$kernel, t, s, left, opts)`
	apply     = `e.apply("$name", strided.$kernel, a, 0, 0, opts)`
	softmax   = `e.softmax("$name", opts, func(in []gtensor.Tensor, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
		return e.std.$name(%s, axis, opts...)
	}, %s)`
)

// kinds lists the methods that only call a helper.
var kinds = []kind{
	{pair, "", binary, zip, arithmetic},
	{number, "", scalar, zipScalar, withNumber(arithmetic)},
	{pair, `noZeros("$name", b)`, binary, zip, divisions},
	{number, `noZeroDivisor("$name", t, s, left)`, scalar, zipScalar, withNumber(divisions)},
	{pair, `fitsComparison("$name", a, opts)`, binary, zip, comparisons},
	{number, `fitsComparison("$name", t, opts)`, scalar, zipScalar, withNumber(comparisons)},
	{"(a, x, y gtensor.Tensor) " + toTensor, "", `e.Mul(a, x, gtensor.WithIncr(y))`,
		`e.zip("$name", strided.Mul, a, x, []gtensor.FuncOpt{gtensor.WithIncr(y)})`, []method{
			{name: "FMA", doc: "adds a * x to y, and returns y."},
		}},
	{"(a gtensor.Tensor, x any, y gtensor.Tensor) " + toTensor, "", `e.MulScalar(a, x, true, gtensor.WithIncr(y))`,
		`e.zipScalar("$name", strided.Mul, a, x, true, []gtensor.FuncOpt{gtensor.WithIncr(y)})`, []method{
			{name: "FMAScalar", doc: "adds a * x to y for a number x, and returns y."},
		}},
	{one, "", unary, apply, []method{
		{name: "Neg", kernel: "Neg", doc: "returns -a, elementwise."},
		{name: "Square", kernel: "Square", doc: "returns a², elementwise."},
		{name: "Cube", kernel: "Cube", doc: "returns a³, elementwise."},
		{name: "Exp", kernel: "Exp", doc: "returns e to the power of a, elementwise."},
		{name: "Tanh", kernel: "Tanh", doc: "returns the hyperbolic tangent of a, elementwise."},
		{name: "Log", kernel: "Log", doc: "returns the natural logarithm of a, elementwise."},
		{name: "Log2", kernel: "Log2", doc: "returns the base-2 logarithm of a, elementwise."},
		{name: "Log10", kernel: "Log10", doc: "returns the base-10 logarithm of a, elementwise."},
		{name: "Sqrt", kernel: "Sqrt", doc: "returns the square root of a, elementwise."},
		{name: "Cbrt", kernel: "Cbrt", doc: "returns the cube root of a, elementwise."},
		{name: "InvSqrt", kernel: "InvSqrt", doc: "returns 1 / sqrt(a), elementwise."},
		{name: "Abs", kernel: "Abs", doc: "returns the absolute value of a, elementwise."},
		{name: "Sign", kernel: "Sign", doc: "returns the sign of a: -1, 0 or 1, elementwise."},
	}},
	{one, `noZeros("$name", a)`, unary, apply, []method{
		{name: "Inv", kernel: "Inv", doc: "returns 1 / a, elementwise. It fails for an integer 0.", deviceDoc: "returns 1 / a, elementwise."},
	}},
	{"(a gtensor.Tensor, along ...int) " + toTensor, "", `e.reduce("$name", gtensor.StdEng.$name, a, along)`,
		`e.fold("$name", $kernel, a, along)`, []method{
			{name: "Sum", doc: "returns the sum along axes, or of all elements if there are no axes."},
			{name: "Min", kernel: "true, false", doc: "returns the smallest element along axes, or of all elements if there are no axes."},
			{name: "Max", kernel: "false, false", doc: "returns the largest element along axes, or of all elements if there are no axes."},
		}},
	{"(t gtensor.Tensor, axis int) " + toTensor, "", `e.one(e.run, "$name", t, func(t gtensor.Tensor) (gtensor.Tensor, error) { return e.std.$name(t, axis) })`,
		`e.fold("$name", $kernel, t, axisOrAll(axis))`, []method{
			{name: "Argmax", kernel: "false, true", doc: "returns the indices, of type Int, of the largest elements along an axis or gtensor.AllAxes."},
			{name: "Argmin", kernel: "true, true", doc: "returns the indices, of type Int, of the smallest elements along an axis or gtensor.AllAxes."},
		}},
	{"(x gtensor.Tensor, axis int, opts ...gtensor.FuncOpt) " + toTensor, "", fmt.Sprintf(softmax, "in[0]", "x"),
		`e.along("$name", axis, opts, $kernel, x)`, []method{
			{name: "SoftMax", kernel: "softMax", doc: "returns the softmax of float32 or float64 along an axis; negative axes count from the last."},
			{name: "LogSoftMax", kernel: "logSoftMax", doc: "returns the logarithm of SoftMax."},
		}},
	{"(output, grad gtensor.Tensor, axis int, opts ...gtensor.FuncOpt) " + toTensor, "", fmt.Sprintf(softmax, "in[0], in[1]", "output, grad"),
		`e.along("$name", axis, opts, $kernel, output, grad)`, []method{
			{name: "SoftMaxB", kernel: "softMaxGrad", doc: "returns the gradient of SoftMax's input."},
			{name: "LogSoftMaxB", kernel: "logSoftMaxGrad", doc: "returns the gradient of LogSoftMax's input: grad - exp(output) * sum(grad)."},
		}},
	{"(a, b, out gtensor.Tensor) error", "", `e.product("$name", gtensor.StdEng.$name, a, b, out)`,
		`e.product("$name", $kernel, a, b, out)`, []method{
			{name: "MatMul", kernel: "false", doc: "sets out to the matrix product of a and b, of float32, float64 or complex numbers.",
				deviceDoc: "sets out to the matrix product of a and b."},
			{name: "MatVecMul", kernel: "true", doc: "sets out to the product of a matrix and a vector."},
		}},
	unsupported("Map", "(_ any, a gtensor.Tensor, _ ...gtensor.FuncOpt) "+toTensor, "nil", ofProgram),
	unsupported("Reduce", "(_ any, a gtensor.Tensor, _ int, _ any, _ ...gtensor.FuncOpt) "+toTensor, "nil", ofProgram),
	unsupported("OptimizedReduce", "(a gtensor.Tensor, _ int, _, _, _, _ any, _ ...gtensor.FuncOpt) "+toTensor, "nil", ofProgram),
	unsupported("Prod", "(a gtensor.Tensor, _ ...int) "+toTensor, "nil", noKernel),
	unsupported("Diag", "(a gtensor.Tensor) "+toTensor, "nil", noKernel),
	unsupported("SVD", "(a gtensor.Tensor, _, _ bool) (s, u, v gtensor.Tensor, err error)", "nil, nil, nil", noKernel),
	unsupported("SelectByIndices", "(a, _ gtensor.Tensor, _ int, _ ...gtensor.FuncOpt) "+toTensor, "nil", noKernel),
	unsupported("SelectByIndicesB", "(a, _, _ gtensor.Tensor, _ int, _ ...gtensor.FuncOpt) "+toTensor, "nil", noKernel),
	unsupported("HasNaN", "(a gtensor.Tensor) (bool, error)", "false", noKernel),
	unsupported("HasInf", "(a gtensor.Tensor) (bool, error)", "false", noKernel),
}

const (
	ofProgram = "the program's functions run on the host"
	noKernel  = "there is no kernel for it"
)

// unsupported returns a method of DeviceEngine that returns an error. Without it the library would
// return an error of another type, and in Map it would print the tensor, which crashes the program.
func unsupported(name, signature, results, why string) kind {
	return kind{signature: signature, device: results + `, unsupported("$name", a)`, methods: []method{
		{name: name, doc: "returns an error: " + why + "."},
	}}
}

// engine returns the methods of Engine or DeviceEngine.
func engine(receiver string) string {
	var b bytes.Buffer
	b.WriteString(header + "package gorgonia\n\nimport (\ngtensor \"gorgonia.org/tensor\"\n")
	if receiver == "DeviceEngine" {
		b.WriteString("\n\"github.com/cistern-ml/cistern/tensor/gorgonia/internal/strided\"\n")
	}
	b.WriteString(")\n")
	for _, k := range kinds {
		for _, m := range k.methods {
			check, result, doc := k.check, k.engine, m.doc
			if receiver == "DeviceEngine" {
				check, result = "", k.device
				if strings.Contains(result, "$kernel") && m.kernel == "" {
					continue
				}
				if m.deviceDoc != "" {
					doc = m.deviceDoc
				}
			}
			if result == "" {
				continue
			}
			comment(&b, m.name, doc)
			body := "return " + result
			if check != "" {
				body = "if err := " + check + "; err != nil {\nreturn nil, err\n}\n" + body
			}
			body = strings.NewReplacer("$name", m.name, "$kernel", m.kernel).Replace(body)
			fmt.Fprintf(&b, "func (e *%s) %s%s {\n%s\n}\n", receiver, m.name, k.signature, body)
		}
	}
	return b.String()
}
