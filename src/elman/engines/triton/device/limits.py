"""Numbers that kernels and schedules are made with.

Powers of two follow from what tensor cores and vector loads take; samples and warps of loops and
grids were measured on an H200, the rest follows from registers and shared memory as the offline
compiler reports them (``docs/design/engine_triton.md``).
"""

from __future__ import annotations

# Blocks of all kernels
LEAST_UNITS = 16  # of a block: what tensor cores multiply
ALIGNED = 16  # elements: a slot begins at a multiple of so many, so that loads are whole vectors
K_PADDING, K_PADDED = 1 / 8, 64  # padding of an inner dim at most, as a share; or elements
GRID_UNITS = 8  # of a block in a grid at least: what tensor cores take along that side
GRID_INNER = 16  # units of a split of an inner dim at least
ROWS_BLOCK, ROWS_MOST = 1024, 64  # elements and rows of a block of a batched phase at most
JOINED_SUMS = 2  # products at most for one operand: its rows are joined by a copy beyond

# Which schedules fit on a chip
PROCESSORS = 132  # of an H100: what is assumed where there is no GPU, and kernels are only made
SHARED = 227 << 10  # (bytes) of shared memory of a program, on an H100
RESERVE = 16 << 10  # (bytes) of it for what else a program of a grid needs
COMPUTED = 4  # (bytes) of a computed element: float32
SAMPLES = (8, 16, 32, 64)  # of a program in a grid
# Four warps have the registers for a loop of so many units. More than four would be wrong: where a
# product follows another one, Triton 3.6 and 3.7 divide its rows over all warps, at least 16 each.
FEW_UNITS = 64
STEPPED_BATCH = 128  # samples beyond which single steps are measured too
OPERAND = 64 << 10  # (bytes) of an operand's tile in shared memory, in a grid at most
WARP_BYTES = 512  # of an inner dim that a warp sums over in a grid: four warps, if it is no more
EXACT_UP_TO = {"bfloat16": 256, "float16": 2048}  # such whole numbers
REDUCED = 4096  # elements of a program's reduction at most: beyond, registers spill

# Matrices per sample
MATRIX_STEPS = 32  # of a chunk: the matrices before it are kept, those of its steps computed again
# Elements of a warp: of a whole matrix, 16 registers of each thread (with 32, half of the backwards
# of 64 x 64 spill), and of a share of one, whose sums then take no exchange between warps.
MATRIX_ELEMENTS = (512, 1024)
# Elements of a share: a warp half full, a full one, four of them (fewer partial sums in memory).
MATRIX_SHARES = (512, 1024, 4096)
SHARE_UNITS = 4  # along the axis that is cut, at least
PARTIAL_BYTES = 1 << 30  # of all programs' partial sums at most, where fewer programs need less
MATRIX_WARPS = 16  # of a program at most
MATRIX_WHOLE = 128 * 128  # elements at most of a matrix that is not cut

# Calls
CALL_GRAPHS = 8  # kinds of calls that are kept captured
GRAPH_AGE = 64  # calls for which a graph stays where there is no room for another
KINDS_SEEN = 64  # kinds of calls, of one call each, that are remembered
GRAPH_STEPS = 4096  # steps of a captured call at most, where each is launched by itself
# (bytes) of a direction's captured calls at most; all steps in one kernel are few launches
STEPS_BYTES, LOOP_BYTES = 256 << 20, 64 << 20

# Recurrences in parallel over time
SCANNED = 4  # states of a system that is scanned: beyond, operands do not fit into registers
SCAN_ELEMENTS = {1: 2048, 2: 1024, 3: 256, 4: 256}  # of a block of steps and channels
SCAN_CHANNELS = 32  # of a block at most
WALKED = 8  # states of a system that threads walk through
WALK_THREADS = 128  # of a program
WALK_BUSY = 256  # threads of a processor that hide what loads wait for
WALK_STEPS = (4, 32)  # of a chunk, at least and at most
GROUP_ELEMENTS = 128  # steps and channels of a block that only evaluates
# Places at most where a kernel of several groups loads weights: the time of Triton's coalescing
# grows with the square of the loads of blocks (GRUs of 8 units: 392 places, 41 s; of 5: 155, 7 s).
GROUP_LOADS = 200
GROUP_WINDOWS = 4  # of a block whose steps are run sequentially
ITERATE = 1e8  # largest value of an iterate, as of ``bounded`` in library.py

# Decoder and loss
CLASSES = 4096  # that a program looks at at once
CLASS_WARPS = 8
