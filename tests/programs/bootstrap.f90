! A Fortran program with MPI on two emulated nodes, whose agents are connected by muster_mpi_init of
! muster_mpi.f90. The last rank dies. Every other one is notified, creates the groups of the running and the
! dead ranks, and prints "DONE". An error is printed as "FAIL".
program bootstrap
  use, intrinsic :: iso_c_binding
  use mpi
  use muster
  use muster_mpi
  implicit none

  integer(c_int32_t), parameter :: limit_ms = 60000
  integer(c_int32_t) :: ended
  integer :: rank, ranks, error, failed, living, world, first(1), in_world(1)
  integer(c_int) :: done
  character(256) :: net, text
  type(c_ptr) :: context

  interface
    function c_raise(signal) result(answer) bind(C, name='raise')
      import :: c_int
      integer(c_int), value :: signal
      integer(c_int) :: answer
    end function
    function c_setenv(name, text, over) result(answer) bind(C, name='setenv')
      import :: c_char, c_int
      character(kind=c_char), dimension(*), intent(in) :: name, text
      integer(c_int), value :: over
      integer(c_int) :: answer
    end function
    subroutine c_exit(status) bind(C, name='_exit')
      import :: c_int
      integer(c_int), value :: status
    end subroutine
  end interface

  call MPI_Init(error)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, error)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks, error)
  call get_environment_variable('TOLD_NET', net)
  write(text, '(a, i0)') 'n', rank / 2
  done = c_setenv('MUSTER_NODE' // c_null_char, trim(text) // c_null_char, 1)
  write(text, '(3a, i0, a)') '127.', trim(net), '.', rank / 2 + 1, '@udp0'
  done = c_setenv('MUSTER_RAILS' // c_null_char, trim(text) // c_null_char, 1)

  if (muster_mpi_init(MPI_COMM_SELF, muster_config(), context) /= MUSTER_ERR_ARGUMENT) call fail('of one process')
  if (muster_mpi_init(MPI_COMM_WORLD, muster_config(), context) /= MUSTER_OK) call fail('muster_mpi_init')
  if (muster_wait_ranks(context, int(ranks, c_int32_t), muster_state(MUSTER_RANK_ALIVE), limit_ms) /= ranks) &
    call fail('not all ranks are alive')
  if (muster_node_count(context) /= 2) call fail('no two nodes')
  if (muster_mpi_failed(context, MPI_COMM_WORLD, failed) /= 0) call fail('a rank has failed')
  call MPI_Group_free(failed, error)
  call MPI_Barrier(MPI_COMM_WORLD, error)
  if (rank == ranks - 1) done = c_raise(9_c_int)

  if (muster_wait_rank(context, int(ranks - 1, c_int32_t), muster_state(MUSTER_RANK_FAILED), limit_ms) &
      /= MUSTER_RANK_FAILED) call fail('the death was not told')
  if (muster_mpi_failed(context, MPI_COMM_WORLD, failed) /= 1) call fail('muster_mpi_failed')
  call MPI_Comm_group(MPI_COMM_WORLD, world, error)
  first = 0
  call MPI_Group_translate_ranks(failed, 1, first, world, in_world, error)
  if (in_world(1) /= ranks - 1) call fail('another rank is in the group')
  ended = ior(muster_state(MUSTER_RANK_ALIVE), muster_state(MUSTER_RANK_LEFT))
  if (muster_mpi_group(context, MPI_COMM_WORLD, ended, living) /= ranks - 1) call fail('muster_mpi_group')
  if (muster_mpi_group(c_null_ptr, MPI_COMM_WORLD, ended, living) /= MUSTER_ERR_ARGUMENT) call fail('without a context')
  if (index(muster_why_text(context, muster_my_node(context)), ' is alive: ') == 0) call fail('muster_why')
  if (muster_finalize(context) /= MUSTER_OK) call fail('muster_finalize')
  print '(a, i0)', 'DONE ', rank
  flush(6)
  ! Not MPI_Finalize, which may wait for the dead rank.
  call c_exit(0_c_int)

contains

  subroutine fail(what)
    character(*), intent(in) :: what
    print '(a, i0, 4a)', 'FAIL ', rank, ': ', what, ': ', muster_last_error_text()
    flush(6)
    call c_exit(1_c_int)
  end subroutine

end program bootstrap
