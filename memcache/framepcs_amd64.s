#include "textflag.h"

// func framePCs(pcs *uintptr, most int) (n int, whole bool)
//
// Nothing is called, and assembly is not preempted: the stack stays where it is.
TEXT ·framePCs(SB), NOSPLIT|NOFRAME, $0-25
	MOVQ pcs+0(FP), DI
	MOVQ most+8(FP), SI
	MOVQ (TLS), R8
	MOVQ 0(R8), R9       // g.stack.lo
	MOVQ 8(R8), R10      // g.stack.hi
	SUBQ $16, R10
	MOVQ BP, BX
	XORQ AX, AX
	XORQ R11, R11
loop:
	TESTQ BX, BX
	JEQ  end             // a goroutine begins without a frame pointer
	CMPQ BX, R9
	JLO  cut
	CMPQ BX, R10
	JHI  cut
	CMPQ AX, SI
	JGE  cut
	MOVQ 8(BX), CX       // the return address
	MOVQ CX, (DI)(AX*8)
	INCQ AX
	LEAQ 1(BX), R9       // the next frame is above this one
	MOVQ (BX), BX        // the caller's frame pointer
	JMP  loop
end:
	MOVQ $1, R11
cut:
	MOVQ AX, n+16(FP)
	MOVB R11, whole+24(FP)
	RET
