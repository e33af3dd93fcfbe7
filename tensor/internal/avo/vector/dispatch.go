package main

import (
	"fmt"
	"go/format"
	"os"
	"strings"
)

// call is a function of package simd. It has an assembly function for every level and type, with
// the same name in lower case followed by level and type.
type call struct {
	name, doc string
	// pointers are the slices, in the order of the assembly's pointers. The elements are of T, or
	// float64 if the name ends in "64".
	pointers string
	// steps are the slices that may have 1 element instead of as many as the others.
	steps string
	// numbers are the float64 arguments.
	numbers string
	// scalars is the type of a struct of T, which is the last argument, and its number of fields,
	// as in "Adam 9".
	scalars string
	result  string
}

var calls = []call{
	{name: "Greatest", doc: "returns the greatest number of x, ignoring NaN, or -Inf.", pointers: "x", result: "T"},
	{name: "Total", doc: "returns the sum of x, in float64.", pointers: "x", result: "float64"},
	{name: "Dot", doc: "returns the sum of the products of x and y, in float64.", pointers: "x y", result: "float64"},
	{name: "Deviations", doc: "returns the sum of the squares of x - mean, in float64.", pointers: "x", numbers: "mean", result: "float64"},
	{name: "DotDeviations", doc: "returns the sums of dy w and of dy w (x - mean), in float64.\n// w may be one number for all.", pointers: "dy x w", steps: "w", numbers: "mean", result: "(sum, dot float64)"},
	{name: "SumExp", doc: "returns the sum of exp(x - top), with all digits of float64. No element may exceed top.", pointers: "x", numbers: "top", result: "float64"},
	{name: "ExpToPrecise", doc: "sets dst to exp(x - top) with all digits of float64, and returns its sum.\n// No element may exceed top.", pointers: "dst64 x", numbers: "top", result: "float64"},
	{name: "ExpTo", doc: "sets dst to exp(x - top), with an error of 2^-34 for float32, and returns its sum.\n// No element may exceed top.", pointers: "dst64 x", numbers: "top", result: "float64"},
	{name: "ScaleTo", doc: "sets dst to x c.", pointers: "dst x64", numbers: "c"},
	{name: "ExpScale", doc: "sets dst to exp(x - top) c. No element may exceed top.", pointers: "dst x", numbers: "top c"},
	{name: "Less", doc: "sets dst to x - top - c.", pointers: "dst x", numbers: "top c"},
	{name: "SoftmaxGrad", doc: "sets dst to y (dy - dot).", pointers: "dst dy y", numbers: "dot"},
	{name: "LogSoftmaxGrad", doc: "sets dst to dy - exp(y) sum.", pointers: "dst dy y", numbers: "sum"},
	{name: "AddTo", doc: "adds x to the sums.", pointers: "sums64 x"},
	{name: "AddDeviations", doc: "adds dy to the sums, and dy (x - mean) rstd to the dots.", pointers: "sums64 dots64 dy x", numbers: "mean rstd"},
	{name: "Normalize", doc: "sets dst to (x - mean) rstd w + b. w and b may be one number for all.", pointers: "dst x w b", steps: "w b", numbers: "mean rstd"},
	{name: "NormalizeGrad", doc: "sets dst to rstd (w dy - own - (x - mean) along). w may be one number for all.", pointers: "dst dy x w", steps: "w", numbers: "mean rstd own along"},
	{name: "Adam", doc: "updates p by a step of Adam, with the gradients dp. It also updates the moments m and v.", pointers: "p dp m v", scalars: "Adam 9"},
	{name: "AdamGreatest", doc: "is Adam with the greatest second moments, top (amsgrad), which it also updates.", pointers: "p dp m v top", scalars: "Adam 9"},
	{name: "SGD", doc: "updates p by a step of gradient descent without momentum.", pointers: "p dp", scalars: "SGD 5"},
	{name: "SGDMomentum", doc: "updates p by a step with the momentum buf, which it also updates.", pointers: "p dp buf", scalars: "SGD 5"},
	{name: "SGDMomentumNesterov", doc: "is SGDMomentum with Nesterov momentum.", pointers: "p dp buf", scalars: "SGD 5"},
	{name: "SGDFirst", doc: "is the first step with momentum. It sets buf without reading it.", pointers: "p dp buf", scalars: "SGD 5"},
	{name: "SGDFirstNesterov", doc: "is SGDFirst with Nesterov momentum.", pointers: "p dp buf", scalars: "SGD 5"},
}

// bare returns a pointer's name without its type.
func bare(p string) string { return strings.TrimSuffix(p, "64") }

func (c call) signature() string {
	var list []string
	for _, p := range strings.Fields(c.pointers) {
		if p == bare(p) {
			list = append(list, p+" []T")
		} else {
			list = append(list, bare(p)+" []float64")
		}
	}
	for _, f := range strings.Fields(c.numbers) {
		list = append(list, f+" float64")
	}
	if c.scalars != "" {
		list = append(list, "s *"+strings.Fields(c.scalars)[0]+"Scalars[T]")
	}
	return fmt.Sprintf("// %s %s\nfunc %s[T Float](%s) %s {\n", c.name, c.doc, c.name, strings.Join(list, ", "), c.result)
}

// plain returns the call of plain Go.
func (c call) plain() string {
	list := strings.Fields(c.pointers)
	for i := range list {
		list[i] = bare(list[i])
	}
	list = append(list, strings.Fields(c.numbers)...)
	if c.scalars != "" {
		list = append(list, "s")
	}
	text := fmt.Sprintf("plain%s(%s)\n", c.name, strings.Join(list, ", "))
	if c.result != "" {
		text = "return " + text
	}
	return text
}

// assembly returns the call of the function for a level and type.
func (c call) assembly(level string, bits int) string {
	name := strings.ToLower(c.name[:1]) + c.name[1:]
	if strings.HasPrefix(c.name, "SGD") {
		name = "sgd" + c.name[3:]
	}
	var list []string
	for _, p := range strings.Fields(c.pointers) {
		if p != bare(p) {
			list = append(list, "unsafe.SliceData("+bare(p)+")")
		} else {
			list = append(list, fmt.Sprintf("(*float%d)(unsafe.Pointer(unsafe.SliceData(%s)))", bits, p))
		}
	}
	list = append(list, "n")
	for _, s := range strings.Fields(c.steps) {
		list = append(list, "step("+s+")")
	}
	list = append(list, strings.Fields(c.numbers)...)
	if c.scalars != "" {
		list = append(list, fmt.Sprintf("(*[%s]float%d)(unsafe.Pointer(s))", strings.Fields(c.scalars)[1], bits))
	}
	text := fmt.Sprintf("%sFloat%d%s(%s)", name, bits, level, strings.Join(list, ", "))
	switch c.result {
	case "":
		return text + "\n"
	case "T":
		return "return T(" + text + ")\n"
	}
	return "return " + text + "\n"
}

// count checks that all slices are as long as the first.
func (c call) count() string {
	pointers := strings.Fields(c.pointers)
	text := "n := len(" + bare(pointers[0]) + ")\n"
	for _, p := range pointers[1:] {
		if strings.Contains(" "+c.steps+" ", " "+p+" ") {
			text += fmt.Sprintf("if len(%s) != 1 {\n_ = %[1]s[:n]\n}\n", p)
			continue
		}
		text += "_ = " + bare(p) + "[:n]\n"
	}
	return text
}

// dispatch writes the functions of package simd that choose the level, for amd64 and for all other
// processors.
func dispatch(amd64, other string) {
	head := "// Code generated by the program in tensor/internal/avo/vector. DO NOT EDIT.\n\n//go:build %s\n\npackage simd\n\n"
	with, without := fmt.Sprintf(head, "!purego")+"import \"unsafe\"\n\n", fmt.Sprintf(head, "purego || !amd64")
	for _, c := range calls {
		with += c.signature() + c.count() + "switch single, l := unsafe.Sizeof(*new(T)) == 4, Active(); {\n"
		for _, bits := range []int{32, 64} {
			for _, level := range []string{"AVX512", "AVX2"} {
				single := map[int]string{32: "single", 64: "!single"}[bits]
				with += fmt.Sprintf("case l == %s && %s:\n%s", level, single, c.assembly(level, bits))
			}
		}
		with += "default:\n" + c.plain() + "}\n}\n\n"
		without += c.signature() + c.plain() + "}\n\n"
	}
	for path, text := range map[string]string{amd64: with, other: without} {
		out, err := format.Source([]byte(text))
		if err != nil {
			out = []byte(text)
			fmt.Fprintln(os.Stderr, err)
		}
		if err := os.WriteFile(path, out, 0o644); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}
