! takeover.f90 - a Fortran program with MPI that continues without a failed rank.
!
! SPDX-License-Identifier: MIT OR Apache-2.0
!
! Each rank computes its share of a series for pi. The last rank is killed before it has sent its sum. The
! other ranks get an event within milliseconds; rank 0 receives the shares, computes that of the failed rank
! itself, and checks the result. Only live ranks send messages, only to rank 0, so the program requires no
! fault tolerance of MPI, but the launcher must not end the other ranks:
!
!     mpirun.openmpi --enable-recovery -n 4 ./takeover
program takeover
  use, intrinsic :: iso_c_binding
  use mpi
  use muster
  implicit none

  integer, parameter :: terms = 4000000
  integer(c_int32_t), parameter :: timeout_ms = 60000
  integer :: rank, ranks, other, error
  integer(c_int) :: state
  integer(c_int32_t) :: ended
  real(c_double) :: part, total, sent
  type(c_ptr) :: context
  type(muster_event_t) :: event

  interface
    function c_raise(signal) result(answer) bind(C, name='raise')
      import :: c_int
      integer(c_int), value :: signal
      integer(c_int) :: answer
    end function
  end interface

  call mpi_init(error)
  call mpi_comm_rank(MPI_COMM_WORLD, rank, error)
  call mpi_comm_size(MPI_COMM_WORLD, ranks, error)
  if (muster_init(c_null_ptr, context) < 0) call fail('muster_init')
  if (muster_wait_ranks(context, int(ranks, c_int32_t), muster_state(MUSTER_RANK_ALIVE), timeout_ms) < 0) &
    call fail('muster_wait_ranks')
  call mpi_barrier(MPI_COMM_WORLD, error)

  part = share(rank)
  if (ranks > 1 .and. rank == ranks - 1) error = c_raise(9_c_int)

  ended = ior(muster_state(MUSTER_RANK_FAILED), muster_state(MUSTER_RANK_LEFT))
  if (rank == 0) then
    total = part
    do other = 1, ranks - 1
      ! A failed rank sends nothing; a rank that has left has sent its share before.
      state = muster_rank_state(context, int(other, c_int32_t))
      if (other == ranks - 1) state = muster_wait_rank(context, int(other, c_int32_t), ended, timeout_ms)
      if (state == MUSTER_RANK_FAILED) then
        sent = share(other)
        print '(a,i0,a)', 'rank 0 takes over the share of rank ', other, '; it was told:'
        event = muster_event()
        do while (muster_next_event(context, event) > 0)
          if (event%kind == MUSTER_EVENT_RANK_FAILED) print '(2a)', '  ', muster_event_text(context, event)
        end do
      else
        call mpi_recv(sent, 1, MPI_DOUBLE_PRECISION, other, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE, error)
      end if
      total = total + sent
    end do
    if (abs(total - acos(-1.0_c_double)) > 1.0e-6_c_double) call fail('the result is wrong')
    print '(a,f10.8)', 'pi is ', total
  else
    call mpi_send(part, 1, MPI_DOUBLE_PRECISION, 0, 0, MPI_COMM_WORLD, error)
    ! Stay until this rank knows of the failure, too.
    state = muster_wait_rank(context, int(ranks - 1, c_int32_t), ended, timeout_ms)
    if (state /= MUSTER_RANK_FAILED) call fail('the failure was not reported')
  end if
  if (muster_leave(context, 0_c_int) < 0) call fail('muster_leave')
  ! Not mpi_finalize: it may wait for the failed rank.
  stop

contains

  function share(of) result(sum)
    integer, intent(in) :: of
    real(c_double) :: sum
    integer :: term
    sum = 0
    do term = of, terms - 1, ranks
      sum = sum + 4.0_c_double*(1 - 2*modulo(term, 2))/(2.0_c_double*term + 1)
    end do
  end function

  subroutine fail(what)
    character(*), intent(in) :: what
    print '(a,i0,4a)', 'rank ', rank, ': ', what, ': ', muster_last_error_text()
    error stop 1
  end subroutine

end program
