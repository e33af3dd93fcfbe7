package main

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/token"
	"slices"
	"strings"
)

// edit replaces a part of a file, or inserts text.
type edit struct {
	at, until int
	text      string
	closes    bool // it ends an expression
	order     int
}

// edits returns the edits that make the operator of s wrong when its number is chosen. text is the
// file's.
func (s site) edits(file *token.File, text string, id int, to token.Token) []edit {
	offset := func(p token.Pos) int { return file.Offset(p) }
	op := offset(s.pos)
	replaces := func(with string) edit { return edit{op, op + len(s.op.String()), with, false, s.order} }
	opens := func(x ast.Node, with string) edit {
		return edit{offset(x.Pos()), offset(x.Pos()), with, false, s.order}
	}
	closes := func(x ast.Node, with string) edit { return edit{offset(x.End()), offset(x.End()), with, true, s.order} }
	source := func(x ast.Node) string { return text[offset(x.Pos()):offset(x.End())] }
	call := func(from token.Token) string { return fmt.Sprintf("%s(%d, ", helper(from, to), id) }
	if s.op == token.ILLEGAL {
		if n, ok := s.node.(*ast.IfStmt); ok {
			return []edit{opens(n.Cond, fmt.Sprintf("!wrongIs(%d) && (", id)), closes(n.Cond, ")")}
		}
		return []edit{opens(s.node, fmt.Sprintf("if !wrongIs(%d) { ", id)), closes(s.node, " }")}
	}
	switch n := s.node.(type) {
	case *ast.UnaryExpr:
		return []edit{replaces(call(s.op)), closes(n, ")")}
	case *ast.IncDecStmt:
		return []edit{replaces(fmt.Sprintf("+= %s%s)", call(s.op), source(n.X)))}
	case *ast.AssignStmt:
		return []edit{replaces(fmt.Sprintf("= %s%s, ", call(assigns[s.op]), source(n.Lhs[0]))), closes(n, ")")}
	case *ast.BinaryExpr:
		switch s.op {
		case token.EQL, token.NEQ:
			return []edit{opens(n, fmt.Sprintf("wrongNot(%d, ", id)), closes(n, ")")}
		case token.LAND, token.LOR:
			return []edit{opens(n, call(s.op)), replaces(", func() bool { return ("), closes(n, ") })")}
		}
		return []edit{opens(n, call(s.op)), replaces(","), closes(n, ")")}
	}
	panic(fmt.Sprintf("operators: %T", s.node))
}

// rewrite makes the edits of a file.
func rewrite(text string, edits []edit) string {
	slices.SortFunc(edits, func(a, b edit) int {
		if c := cmp.Compare(a.at, b.at); c != 0 || a.closes != b.closes {
			return cmp.Or(c, map[bool]int{true: -1, false: 1}[a.closes])
		}
		if a.closes {
			return cmp.Compare(b.order, a.order) // inner expressions end first
		}
		return cmp.Compare(a.order, b.order)
	})
	var out strings.Builder
	done := 0
	for _, e := range edits {
		out.WriteString(text[done:e.at])
		out.WriteString(e.text)
		done = e.until
	}
	out.WriteString(text[done:])
	return out.String()
}

var names = map[token.Token]string{
	token.ADD: "Add", token.SUB: "Sub", token.MUL: "Mul", token.QUO: "Quo", token.REM: "Rem", token.AND: "And", token.OR: "Or", token.XOR: "Xor",
	token.AND_NOT: "AndNot", token.SHL: "Shl", token.SHR: "Shr", token.LSS: "Less", token.LEQ: "LessEqual", token.GTR: "Greater", token.GEQ: "GreaterEqual",
	token.LAND: "Both", token.LOR: "Either",
}

// helper returns a function that does one operation, or another.
func helper(from, to token.Token) string {
	switch {
	case from == token.NOT:
		return "wrongNotNot"
	case from == token.INC:
		return "wrongInc"
	case from == token.DEC:
		return "wrongDec"
	case from == token.SUB && to == token.ILLEGAL:
		return "wrongMinus"
	}
	return "wrong" + names[from] + names[to]
}

// helpers returns a file with all helpers of the package.
func helpers(pkg string) string {
	var out strings.Builder
	fmt.Fprintf(&out, helpersHead, pkg)
	for from, tos := range wrong {
		for _, to := range tos {
			switch name := helper(from, to); from {
			case token.EQL, token.NEQ:
			case token.LAND, token.LOR:
				fmt.Fprintf(&out, "func %s(id int32, a bool, b func() bool) bool {\n\tif wrongIs(id) {\n\t\treturn a %v b()\n\t}\n\treturn a %v b()\n}\n\n", name, to, from)
			case token.LSS, token.LEQ, token.GTR, token.GEQ:
				fmt.Fprintf(&out, "func %s[T cmp.Ordered](id int32, a, b T) bool {\n\tif wrongIs(id) {\n\t\treturn a %v b\n\t}\n\treturn a %v b\n}\n\n", name, to, from)
			case token.SHL, token.SHR:
				fmt.Fprintf(&out, "func %s[T, N wrongInteger](id int32, a T, b N) T {\n\tif wrongIs(id) {\n\t\treturn a %v b\n\t}\n\treturn a %v b\n}\n\n", name, to, from)
			default:
				kind := "wrongInteger"
				if from == token.ADD || from == token.SUB || from == token.MUL || from == token.QUO {
					kind = "wrongNumber"
				}
				fmt.Fprintf(&out, "func %s[T %s](id int32, a, b T) T {\n\tif wrongIs(id) {\n\t\treturn a %v b\n\t}\n\treturn a %v b\n}\n\n", name, kind, to, from)
			}
		}
	}
	return out.String()
}

const helpersHead = `package %s

import (
	"cmp"
	"fmt"
	"os"
	"strconv"
	"sync"
)

type wrongInteger interface {
	~int | ~int8 | ~int16 | ~int32 | ~int64 | ~uint | ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~uintptr
}

type wrongNumber interface {
	wrongInteger | ~float32 | ~float64
}

var (
	wrongReached = os.Getenv("` + reachedEnv + `")
	wrongSeen    sync.Map
	wrongChosen  = func() int32 {
		n, _ := strconv.Atoi(os.Getenv("` + chosenEnv + `"))
		if wrongReached != "" {
			return -1
		}
		return int32(n)
	}()
)

func wrongIs(id int32) bool {
	if wrongChosen < 0 {
		wrongSee(id)
	}
	return wrongChosen == id
}

//go:noinline
func wrongSee(id int32) {
	if _, seen := wrongSeen.LoadOrStore(id, true); !seen {
		f, err := os.OpenFile(wrongReached, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			panic(err)
		}
		fmt.Fprintln(f, id)
		f.Close()
	}
}

func wrongNot(id int32, is bool) bool { return wrongIs(id) != is }

func wrongNotNot(id int32, is bool) bool { return wrongIs(id) == is }

func wrongInc[T wrongNumber](id int32, _ T) T {
	if wrongIs(id) {
		var zero T
		return zero - 1
	}
	return 1
}

func wrongDec[T wrongNumber](id int32, _ T) T {
	if wrongIs(id) {
		return 1
	}
	var zero T
	return zero - 1
}

func wrongMinus[T wrongNumber](id int32, a T) T {
	if wrongIs(id) {
		return a
	}
	return -a
}

`
